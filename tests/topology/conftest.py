"""megatron-core's own arithmetic, without processes: what it would build is recorded instead of built."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

type Groups = dict[str, list[list[int]]]
"""The ranks of every group that was made, in order, by megatron-core's description."""


@pytest.fixture(scope="session")
def megatron_groups() -> Callable[..., Groups]:
    """Calls ``initialize_model_parallel`` and returns what it asked for."""
    import numpy as np
    import torch
    from megatron.core import parallel_state

    class Einops:
        """einops, optional to megatron-core, for the one pattern that it rearranges groups by."""

        @staticmethod
        def rearrange(ranks: np.ndarray, pattern: str, *, l: int, s: int, u: int) -> np.ndarray:  # noqa: E741 - its names
            assert pattern == "(l s u) -> (l u) s"
            return ranks.reshape(l, s, u).transpose(0, 2, 1).reshape(l * u, s)

    def build(world_size: int, **arguments: Any) -> Groups:
        made: Groups = defaultdict(list)

        def record(ranks: list[int], *, group_desc: str, **_: Any) -> list[int]:
            made[group_desc].append(list(ranks))
            return ranks

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parallel_state, "create_group", record)
            patch.setattr(parallel_state, "HAVE_EINOPS", True)
            patch.setattr(parallel_state, "einops", Einops, raising=False)
            patch.setattr(torch.distributed, "is_initialized", lambda: True)
            patch.setattr(torch.distributed, "get_world_size", lambda: world_size)
            patch.setattr(torch.distributed, "get_rank", lambda: 0)
            try:
                parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **arguments)
            finally:
                parallel_state.destroy_model_parallel()
        return made

    return build


@pytest.fixture(scope="session")
def megatron_stage() -> Callable[..., Any]:
    """A context in which megatron-core takes itself for one rank of a pipeline."""
    from megatron.core import parallel_state

    @contextmanager
    def stand_at(*, pp_rank: int, pp: int, vpp: int | None) -> Iterator[None]:
        parallel_state.set_pipeline_model_parallel_rank(pp_rank)
        parallel_state.set_pipeline_model_parallel_world_size(pp)
        parallel_state.set_virtual_pipeline_model_parallel_world_size(vpp)
        try:
            yield
        finally:
            parallel_state.set_pipeline_model_parallel_rank(None)
            parallel_state.set_pipeline_model_parallel_world_size(None)
            parallel_state.set_virtual_pipeline_model_parallel_world_size(None)

    return stand_at
