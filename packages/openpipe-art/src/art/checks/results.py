"""What a check found, and the one error that tells of everything that failed.

What always holds: a check reads; it starts, creates and changes nothing that outlives it.
"""

import enum
from collections.abc import Iterable

import msgspec

from art.errors import PreflightError


class State(enum.Enum):
    """``WARNING``: it can be tried; ``FAILURE``: it cannot work."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Args:
        name: what, in a word or two.
        state: whether it will do.
        found: what is there, with its numbers and units.
        needed: what is asked for, likewise.
        remedy: the next step, a command or a sentence; empty when there is nothing to mend.
    """

    name: str
    state: State
    found: str
    needed: str = ""
    remedy: str = ""

    def line(self) -> str:
        """The check as one line: what was found, what is needed, and the next step.

        One that warns begins with ``warning:``, so that nobody takes it for a refusal.
        """
        kind = "warning: " if self.state is State.WARNING else ""
        needed = f", needed: {self.needed}" if self.needed else ""
        remedy = f". To mend: {self.remedy}" if self.remedy else ""
        return f"{kind}{self.name}: {self.found}{needed}{remedy}"


def passed(name: str, found: str, needed: str = "") -> Check:
    """A check that found what is needed."""
    return Check(name=name, state=State.OK, found=found, needed=needed)


def warned(name: str, found: str, needed: str = "", remedy: str = "") -> Check:
    """A check that found what may not do."""
    return Check(name=name, state=State.WARNING, found=found, needed=needed, remedy=remedy)


def failed(name: str, found: str, needed: str = "", remedy: str = "") -> Check:
    """A check that found what cannot do."""
    return Check(name=name, state=State.FAILURE, found=found, needed=needed, remedy=remedy)


def failures(checks: Iterable[Check]) -> list[Check]:
    """Those of ``checks`` that failed, each once."""
    return list(dict.fromkeys(check for check in checks if check.state is State.FAILURE))


def warnings(checks: Iterable[Check]) -> list[Check]:
    """Those of ``checks`` that warn, each once."""
    return list(dict.fromkeys(check for check in checks if check.state is State.WARNING))


def require(checks: Iterable[Check], what: str = "this cannot run here") -> None:
    """Raises when a check failed.

    Args:
        checks: what was found.
        what: how the message begins.

    Raises:
        PreflightError: it lists every failure, each in one line with its next step.
    """
    found = failures(checks)
    if len(found) == 1:
        raise PreflightError(f"{what}: {found[0].line()}")
    if found:
        raise PreflightError("\n".join([f"{what}:", *(f"- {check.line()}" for check in found)]))
