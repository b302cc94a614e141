"""The errors of the facade; those of the runtime are in :mod:`art.distributed.errors`."""


class ArtError(Exception):
    """Base of every error that ART raises on purpose."""


class ConfigError(ArtError):
    """A setting is missing, contradictory or came too late."""


class SettingError(ConfigError, ValueError):
    """A setting has a value of a wrong type or out of its range; the text names it and one that works."""


class PreflightError(ConfigError):
    """What can be known before anything starts stands in the way; the text lists all of it, one line each."""


class PromptLengthError(ConfigError):
    """A prompt leaves no room for its answer.

    Args:
        text: which prompts, how long each is, the limit and the next step.
        longest: tokens that the longest prompt and its answer need together.
        limit: tokens that there is room for.
    """

    def __init__(self, text: str, longest: int, limit: int) -> None:
        self.longest = longest
        self.limit = limit
        super().__init__(text, longest, limit)

    def __str__(self) -> str:
        return str(self.args[0])


class TrajectoryError(ArtError, ValueError):
    """A trajectory was given what it cannot hold; the text names the place and what to write."""


class RecordError(ArtError):
    """A trajectory cannot be turned into a training record."""


class UnlimitedAnswerWarning(UserWarning):
    """A request set no bound on the length of its answer."""


class RolloutFailed(ArtError):  # noqa: N818 - it names what happened to the rollout
    """User code in a rollout raised.

    Args:
        kind: name of the exception's type, ``module.Type``.
        message: the exception's text.
        traceback_text: its formatted traceback, as the process that ran it saw it.
        where: what ran it, for example ``rollout worker 3 (pid 123)``.
        scenario: what it was asked, shortened, as ``repr`` shows it.
    """

    def __init__(
        self, kind: str, message: str, traceback_text: str = "", where: str = "", scenario: str = ""
    ) -> None:
        self.kind = kind
        self.message = message
        self.traceback_text = traceback_text
        self.where = where
        self.scenario = scenario
        super().__init__(kind, message, traceback_text, where, scenario)

    def __str__(self) -> str:
        place = f" in {self.where}" if self.where else ""
        place += f" on scenario {self.scenario}" if self.scenario else ""
        text = f"rollout failed{place}: {self.kind}: {self.message}"
        return f"{text}\n{self.traceback_text.rstrip()}" if self.traceback_text else text


class GatherError(ArtError):
    """More rollouts failed than ``max_exceptions`` allows.

    Args:
        text: how many failed of how many, and the first failure.
        failures: what the rollouts raised, in the order in which they came.
    """

    def __init__(self, text: str, failures: list[BaseException]) -> None:
        self.failures = failures
        super().__init__(text)
