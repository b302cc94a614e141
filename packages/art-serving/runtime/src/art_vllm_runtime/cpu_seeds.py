"""Requests with a seed whose prompt takes several steps to read.

At each of these steps vLLM 0.32 draws a token for the request, throws it away, and moves the request's
generator back by an offset. Generators on a CPU have none: the engine died of it. Here they are put back by
their whole state, so a seed gives the same answer however its prompt was read.
"""

from typing import Any

from vllm.v1.worker.cpu_model_runner import CPUModelRunner


def _thrown_away(self: Any) -> list[int]:
    """Rows of the batch that have a generator and read only a part of their prompt in this step."""
    discarded = self.discard_request_mask.np
    return [index for index in self.input_batch.generators if discarded[index]]


def _sample(self: Any, *args: Any, **kwargs: Any) -> Any:
    generators = self.input_batch.generators
    before = {index: generators[index].get_state() for index in _thrown_away(self)}
    output = _original_sample(self, *args, **kwargs)
    for index, state in before.items():
        generators[index].set_state(state)
    return output


def _bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Hides what was put back already."""
    generators = self.input_batch.generators
    hidden = {index: generators.pop(index) for index in _thrown_away(self)}
    try:
        return _original_bookkeeping_sync(self, *args, **kwargs)
    finally:
        generators.update(hidden)


_original_sample = CPUModelRunner._sample
_original_bookkeeping_sync = CPUModelRunner._bookkeeping_sync


def install() -> None:
    """Replaces vLLM's. Idempotent."""
    CPUModelRunner._sample = _sample
    CPUModelRunner._bookkeeping_sync = _bookkeeping_sync
