"""What the state machines share: a loop whose time they set, laws with names, and the search for planted
faults."""

import asyncio
import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

EXAMPLES = int(os.environ.get("ART_STATEFUL_EXAMPLES", "400"))
"""Interleavings of a queue; set more for a long search."""

STEPS = 40


class BrokenLawError(AssertionError):
    """A law does not hold."""

    def __init__(self, law: str, detail: object) -> None:
        super().__init__(f"{law}: {detail}")
        self.law = law


class SetTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is what ``now`` says."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Runs until nobody has anything to do before time passes."""

        async def until_calm() -> None:
            calm = 0
            while calm < 2:
                await asyncio.sleep(0)
                calm = 0 if self._ready else calm + 1

        self.run_until_complete(until_calm())

    def finish(self) -> int:
        """Cancels what is left, closes, and says how many tasks there were."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
            self.settle()
        self.close()
        return len(left)


class FakeProcess:
    """Stands for the identity of a process that can be killed here."""

    def __init__(self) -> None:
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive


class Tools:
    """Handed to machines by the fixture ``tools``."""

    BrokenLawError = BrokenLawError
    Loop = SetTimeLoop
    FakeProcess = FakeProcess

    @staticmethod
    def hold(law: str, condition: bool, detail: object = "") -> None:
        if not condition:
            raise BrokenLawError(law, detail)

    @staticmethod
    def run(machine: type[RuleBasedStateMachine], examples: int = EXAMPLES) -> None:
        """Random interleavings, the same ones every time."""
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                database=None,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )

    @staticmethod
    def law_broken_by(machine: type[RuleBasedStateMachine]) -> str:
        """The law that the machine finds broken in the first interleaving that breaks any."""
        with pytest.raises(BrokenLawError) as caught:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=2000,
                    stateful_step_count=STEPS,
                    deadline=None,
                    derandomize=True,
                    database=None,
                    report_multiple_bugs=False,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
        return caught.value.law


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools


@pytest.fixture(scope="session")
def with_fault() -> Callable[..., type[RuleBasedStateMachine]]:
    """A machine like another, with other classes under test."""

    def build(machine: type[RuleBasedStateMachine], **parts: object) -> type[RuleBasedStateMachine]:
        return type(f"Faulty{machine.__name__}", (machine,), parts)

    return build
