"""Notices when a run stands still: steps in which all answers to each question got the same reward, so that
nothing was learned, although a better reward is known."""

from collections.abc import Iterable

STEPS = 3
"""Steps without training in a row that are worth a word."""

_MARGIN = 0.05
"""Share of the span of all rewards by which the mean may be below the best one and pass for it."""

_REMEDIES = (
    "What can help: a reward that tells these answers apart, a higher temperature, other questions, or an "
    "example of a good answer in the prompt"
)


class FlatRewards:
    """Watches the steps of one run and says once that it stands still.

    A run that has converged is not meant: there the mean is the best reward of the run, or what the program
    calls enough. One in which every single reward was the same is, since no step has learned anything.

    Args:
        enough: mean reward above which the program is content, if it says so.
        before: rewards of earlier steps, or their means.
    """

    def __init__(self, enough: float | None = None, before: Iterable[float] = ()) -> None:
        self._enough = enough
        self._seen = list(before)
        self._flat_steps = 0
        self._told = False

    def step(self, rewards: Iterable[float], *, mean: float, trained: bool) -> str | None:
        """Takes a step in, and returns the line to show, if any.

        Args:
            rewards: of the step's rollouts.
            mean: of these.
            trained: whether the policy took a step on them.
        """
        given = [*self._seen, *rewards]
        low, best = self._seen = [min(given), max(given)]
        self._flat_steps = 0 if trained else self._flat_steps + 1
        if self._told or self._flat_steps < STEPS or (self._enough is not None and mean >= self._enough):
            return None
        known = best if self._enough is None else max(best, self._enough)
        margin = _MARGIN * (known - low)
        if best - mean > margin:
            why = f"the best of this run is {best:.3f}"
        elif known - mean > margin:
            why = f"the program calls {known:.3f} enough"
        elif low == best:
            why = "as was every reward of this run"
        else:
            return None
        self._told = True
        return (
            f"nothing was learned in the last {STEPS} steps: all answers to each question got the same "
            f"reward (mean {mean:.3f}; {why}). {_REMEDIES}"
        )
