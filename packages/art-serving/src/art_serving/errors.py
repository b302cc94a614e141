"""The errors of this package. Each message carries the numbers and the next step to take."""


class ServingError(Exception):
    """Base of every error that art_serving raises on its own account."""


class OptionsError(ServingError, ValueError):
    """An option has a value of a wrong type or out of its range; the text names one that works."""


class EnvironmentBuildError(ServingError):
    """An environment could not be built or found; nothing half-built is left that would be used later."""


class NoRoomError(EnvironmentBuildError):
    """A disk was full while an environment was built; the text names it and how much a build needs."""


class PreflightError(ServingError):
    """What was found on the host does not allow the member to start; nothing was started."""


class MemberError(ServingError):
    """A member did not start, stopped, or does not answer; the message names the process that died."""


class ActivationError(ServingError):
    """A snapshot was not activated.

    Args:
        message: why, and what to do.
        quarantined: which version is active is in doubt, and the service refuses requests until a restart;
            otherwise the old version is active.
    """

    def __init__(self, message: str, *, quarantined: bool = False) -> None:
        super().__init__(message)
        self.quarantined = quarantined


class ServiceClosedError(ServingError):
    """The service was stopped, or never started, and cannot do what was asked."""
