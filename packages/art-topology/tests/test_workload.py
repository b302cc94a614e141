"""What a workload comes to in tokens and rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.spec import SpecError
from art_topology.workload import WorkloadSpec


def _workload(**changes: object) -> WorkloadSpec:
    values = {
        "packed_sequence_length": 4096,
        "groups_per_step": 4,
        "group_size": 8,
        "prompt_tokens": 1000,
        "completion_tokens": 250,
    }
    return WorkloadSpec(**(values | changes))


def test_a_shared_prompt_is_counted_once_for_its_group() -> None:
    assert _workload().group_tokens == 1000 + 8 * 250
    assert _workload(prompt_sharing=False).group_tokens == 8 * (1000 + 250)


def test_logical_tokens_count_every_prompt() -> None:
    assert _workload().logical_tokens_per_step == 4 * 8 * 1250


def test_rows_hold_the_physical_tokens() -> None:
    assert _workload().physical_tokens_per_step == 12_000
    assert _workload().rows_per_step == 3


def test_a_group_longer_than_a_row_repeats_its_prompt_in_each() -> None:
    workload = _workload(packed_sequence_length=2000)
    # A row takes the prompt and 4 of 8 completions.
    assert workload.physical_tokens_per_step == 4 * (2 * 1000 + 8 * 250)


def test_all_completions_are_in_flight_unless_it_is_said() -> None:
    assert _workload().requests_in_flight == 32
    assert _workload(concurrent_requests=5).requests_in_flight == 5


def test_a_value_out_of_range_is_refused_by_its_name() -> None:
    with pytest.raises(SpecError, match=r"WorkloadSpec\.group_size"):
        _workload(group_size=0)


@settings(deadline=None)
@given(
    length=st.integers(1, 5000),
    groups=st.integers(1, 20),
    size=st.integers(1, 20),
    prompt=st.integers(1, 3000),
    completion=st.integers(1, 3000),
)
def test_sharing_never_computes_more_than_separate_sequences(
    length: int, groups: int, size: int, prompt: int, completion: int
) -> None:
    workload = _workload(
        packed_sequence_length=length,
        groups_per_step=groups,
        group_size=size,
        prompt_tokens=prompt,
        completion_tokens=completion,
    )
    assert workload.physical_tokens_per_step <= workload.logical_tokens_per_step
    assert workload.physical_tokens_per_step >= groups * (prompt + size * completion)
