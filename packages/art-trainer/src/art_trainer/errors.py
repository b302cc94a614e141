"""Every error this package raises on purpose. Each message holds the numbers and the next step."""


class TrainerError(Exception):
    """Base class of the errors of this package."""


class SpecError(TrainerError, ValueError):
    """A spec or job contradicts itself; msgspec turns it into a ValidationError when it decodes one."""


class PreflightError(TrainerError):
    """The machine cannot do what the spec asks (threads, memory, library versions)."""


class UnsupportedModelError(TrainerError):
    """The model folder describes something its handler does not cover."""


class ModelLoadError(TrainerError):
    """The weights in the folder do not fit the model that its ``config.json`` describes."""


class BatchError(TrainerError):
    """A packed batch is not one this rank can train on."""


class SnapshotPoolError(TrainerError):
    """No slot became free in time, or the pool is closed."""


class DurabilityError(TrainerError):
    """A generation could not be written or read."""


class ResumeError(DurabilityError):
    """The generations folder does not hold what the run asks to resume from."""


class EventOrderError(TrainerError):
    """A job's events came in an order that no correct rank produces."""


class RankStateError(TrainerError):
    """The rank is not in the state that a call needs (not loaded, busy, broken or closed)."""


class SinkError(TrainerError):
    """No receipt of a sink for a version: unknown name or version, or the deadline passed."""
