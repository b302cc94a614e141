"""The roofline, the pipeline's bubble, and rows that differ."""

import random
import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_topology.cost.arithmetic import Processor, processor
from art_topology.cost.calibration import Calibration
from art_topology.cost.pipeline import bubble_s, expected_maximum, slack
from art_topology.hardware import default_hardware

DEVICE = Processor(
    peak_flops=1e15,
    matmul_flops=7e14,
    grouped_flops=6e14,
    memory_bytes_per_s=3e12,
    kernel_s=5e-6,
    tile_rows=128,
    depth=0,
    dtype_bytes=2,
    architecture="hopper",
)
sizes = st.integers(1, 1 << 15)


def test_large_products_are_bound_by_arithmetic() -> None:
    assert DEVICE.product_s(8192, 8192, 8192) == pytest.approx(2 * 8192**3 / 7e14 + 5e-6)


def test_thin_products_are_bound_by_memory() -> None:
    moved = (4096 * (4096 + 16) + 4096 * 16) * 2
    assert DEVICE.product_s(4096, 4096, 16) == pytest.approx(moved / 3e12 + 5e-6)


def test_products_of_experts_lose_half_a_tile_each() -> None:
    expected = 2 * (4096 + 64) * 4096 * 2048 * 32 / 6e14 + 5e-6
    assert DEVICE.grouped_s(4096, 4096, 2048, 32) == pytest.approx(expected)


def test_short_sums_are_slower() -> None:
    device = msgspec.structs.replace(DEVICE, depth=128, kernel_s=0)
    flops = 2 * 8192 * 512 * 8192
    assert device.product_s(8192, 512, 8192) == pytest.approx(flops * (1 + 128 / 512) / 7e14)
    assert device.product_s(8192, 512, 8192, weights=True) == pytest.approx(flops * (1 + 128 / 8192) / 7e14)
    assert device.grouped_s(8192 - 64, 512, 8192, 4) == pytest.approx(4 * flops * (1 + 128 / 512) / 6e14)


def test_a_gpu_that_its_power_slows_down_multiplies_slower() -> None:
    table = default_hardware()
    gpu = table.gpu("GB200")
    slow = processor(gpu, "bfloat16", 2, Calibration())
    fast = processor(msgspec.structs.replace(gpu, sustained=1.0), "bfloat16", 2, Calibration())
    assert slow.matmul_flops == pytest.approx(fast.matmul_flops * gpu.sustained)
    assert gpu.sustained < 1
    assert table.gpu("B200").sustained == 1


@settings(deadline=None)
@given(rows=sizes, inputs=sizes, outputs=sizes, factor=st.integers(1, 8))
def test_larger_products_never_take_less(rows: int, inputs: int, outputs: int, factor: int) -> None:
    once = DEVICE.product_s(rows, inputs, outputs)
    assert DEVICE.product_s(rows * factor, inputs, outputs) >= once
    assert DEVICE.product_s(rows, inputs * factor, outputs) >= once
    assert DEVICE.product_s(rows, inputs, outputs * factor) >= once
    assert DEVICE.product_s(rows * factor, inputs, outputs) <= factor * once + 1e-12


@settings(deadline=None)
@given(rows=sizes, inputs=sizes, outputs=sizes)
def test_no_product_is_faster_than_the_roofline(rows: int, inputs: int, outputs: int) -> None:
    seconds = DEVICE.product_s(rows, inputs, outputs)
    assert seconds >= 2 * rows * inputs * outputs / DEVICE.peak_flops
    assert seconds >= inputs * outputs * 2 / DEVICE.memory_bytes_per_s


def test_float32_is_multiplied_as_tf32() -> None:
    gpu = default_hardware().gpu("H100")
    assert processor(gpu, "float32", 4, Calibration()).peak_flops == gpu.peak_flops["tf32"]
    assert processor(gpu, "bfloat16", 2, Calibration()).peak_flops == gpu.peak_flops["bfloat16"]


def one_forward_one_backward(forward_s: float, backward_s: float, stages: int, rows: int) -> float:
    """The end of a step by simulating 1F1B: each pass waits for the one it needs and for its rank."""
    orders = []
    for stage in range(stages):
        warmup = min(stages - stage - 1, rows)
        order = [("f", row) for row in range(warmup)]
        for row in range(rows - warmup):
            order += [("f", warmup + row), ("b", row)]
        order += [("b", row) for row in range(rows - warmup, rows)]
        orders.append(order)
    done: dict[tuple[str, int, int], float] = {}
    free = [0.0] * stages
    position = [0] * stages
    while any(position[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            while position[stage] < len(orders[stage]):
                kind, row = orders[stage][position[stage]]
                need: tuple[str, int, int] | None
                if kind == "f":
                    need = ("f", stage - 1, row) if stage else None
                else:
                    need = ("b", stage + 1, row) if stage < stages - 1 else ("f", stage, row)
                if need is not None and need not in done:
                    break
                start = max(free[stage], done[need] if need else 0.0)
                free[stage] = done[kind, stage, row] = start + (forward_s if kind == "f" else backward_s)
                position[stage] += 1
    return max(free)


@pytest.mark.parametrize(("stages", "rows"), [(1, 4), (2, 2), (4, 4), (4, 16), (8, 12)])
def test_the_bubble_is_that_of_a_simulated_schedule(stages: int, rows: int) -> None:
    row_s = 3.0
    simulated = one_forward_one_backward(1.0, 2.0, stages, rows)
    assert rows * row_s + bubble_s([row_s] * stages, 1) == pytest.approx(simulated)


def test_virtual_stages_divide_the_bubble() -> None:
    assert bubble_s([2.0] * 4, 3) == pytest.approx(bubble_s([2.0] * 4, 1) / 3)


def test_the_slowest_stage_waits_for_the_others_once() -> None:
    assert bubble_s([1.0, 3.0, 2.0], 1) == pytest.approx(3.0)
    assert bubble_s([3.0], 1) == 0.0


@pytest.mark.parametrize("count", [2, 3, 8, 16, 64])
def test_expected_maxima_are_those_of_drawn_numbers(count: int) -> None:
    rng = random.Random(count)
    drawn = [max(rng.gauss(0, 1) for _ in range(count)) for _ in range(20_000)]
    assert expected_maximum(count) == pytest.approx(statistics.fmean(drawn), abs=0.04)


def test_equal_rows_cost_nothing_and_more_rows_cancel() -> None:
    assert slack(4, 8, 1, 16, 0.0) == 0.0
    assert slack(1, 1, 1, 16, 0.1) == 0.0
    assert slack(1, 8, 1, 64, 0.1) < slack(1, 8, 1, 4, 0.1)


def test_ranks_that_share_experts_wait_in_every_layer() -> None:
    assert slack(1, 8, 8, 16, 0.1) > slack(1, 8, 1, 16, 0.1)
