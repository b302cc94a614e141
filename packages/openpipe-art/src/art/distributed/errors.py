"""The errors of the runtime. Each names the part it is about and what to do next."""

from typing import TYPE_CHECKING

from art.errors import ArtError

if TYPE_CHECKING:
    from art_dataplane import LostGroup


class RuntimeFailure(ArtError):  # noqa: N818 - the base of what goes wrong while a runtime lives
    """Base of the runtime's errors."""


class PartFailed(RuntimeFailure):
    """A part that others depend on failed: the trainer, the model service, a worker.

    It is no failure of the rollout or the step that waited for it, so it is not counted as one.
    """


class StartupError(RuntimeFailure):
    """A part of the runtime did not come up."""


class CallableError(RuntimeFailure):
    """A function cannot be referenced by import path, or is another one in the worker."""


class ProgramError(ArtError):
    """A program reference given to ``art-monarch`` cannot be used."""


_KILLED = "killed by SIGKILL"
_MEMORY = " (where nobody killed it, the kernel did, for want of memory: `dmesg` says so)"


class ActorDied(PartFailed):
    """The process of an actor ended.

    Args:
        role: which one, with its process id, for example ``rollout worker 3 (pid 123)``.
        cause: why, for example ``killed by SIGKILL``.
    """

    def __init__(self, role: str, cause: str) -> None:
        self.role = role
        self.cause = cause
        super().__init__(role, cause)

    def __str__(self) -> str:
        return f"{self.role} died: {self.cause}{_MEMORY if self.cause.endswith(_KILLED) else ''}"


class GroupsLost(PartFailed):
    """Records of some groups of a step are gone, for example since the worker that held them died.

    Nothing was trained. The other groups are as good as before: give them to the next step, without those
    whose handles have a ``ref.group_id`` among :attr:`group_ids`, and gather these again.

    Args:
        groups: exactly the groups concerned, with what each lost and why.
        asked: how many groups the step was given.
    """

    def __init__(self, groups: "tuple[LostGroup, ...]", asked: int) -> None:
        self.groups = groups
        self.asked = asked
        super().__init__(groups, asked)

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The ids of the groups concerned."""
        return tuple(group.group_id for group in self.groups)

    def __str__(self) -> str:
        lost = "; ".join(map(str, self.groups))
        rest = self.asked - len(self.groups)
        more = f" The other {rest} are as good as before; train on them alone." if rest else ""
        return (
            f"{len(self.groups)} of {self.asked} groups lost records: {lost}. Nothing was trained; gather "
            f"these again.{more}"
        )


class ActorTimeout(RuntimeFailure, TimeoutError):  # noqa: N818 - a TimeoutError
    """An actor did not answer within the deadline; the call was cancelled there."""


class RemoteError(RuntimeFailure):
    """A method of an actor raised; the actor lives on.

    Args:
        role: which actor.
        method: which method.
        kind: the exception's type, ``module.Type``.
        message: its text.
        traceback_text: its formatted traceback.
        arguments: MessagePack of what an error of the data plane was made with; empty for every other one.
    """

    def __init__(
        self,
        role: str,
        method: str,
        kind: str,
        message: str,
        traceback_text: str,
        arguments: bytes = b"",
    ) -> None:
        self.role = role
        self.method = method
        self.kind = kind
        self.message = message
        self.traceback_text = traceback_text
        self.arguments = arguments
        super().__init__(role, method, kind, message, traceback_text, arguments)

    def __str__(self) -> str:
        return (
            f"{self.role}: {self.method}() raised {self.kind}: {self.message}\n{self.traceback_text.rstrip()}"
        )


class CloseError(RuntimeFailure, ExceptionGroup[Exception]):
    """Closing went on to its end; parts failed on the way: an ``ExceptionGroup`` of what they raised."""

    def __str__(self) -> str:
        return f"{self.message}: " + "; ".join(str(error) for error in self.exceptions)

    @property
    def left_behind(self) -> bool:
        """Whether something could not be ended or removed; otherwise parts only failed on their way out."""
        return not all(isinstance(error, ArtError | TimeoutError) for error in self.exceptions)

    def follows(self, error: BaseException) -> bool:
        """Whether it says nothing that ``error``, which ended the run, does not: then it is noted there."""
        if self.left_behind:
            return False
        error.add_note(str(self))
        return True
