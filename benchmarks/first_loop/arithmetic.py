"""What a step would take if it were nothing but its matrix products: ``python -m
benchmarks.first_loop.arithmetic OUT``, with the file that the benchmark wrote.

Counted is what no implementation of this task can leave out: each distinct prompt once, each sampled token
once through the model and the vocabulary, and for training each distinct prefix once forward and once
backward (towards the activations; the weights are frozen). Attention, the adapter, norms and the optimizer
are left out. The rates are measured here, with torch, float32 and the same threads, at the shapes and numbers
of rows of the steps.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import msgspec
from benchmarks.first_loop.counts import Counts
from benchmarks.first_loop.report import Pair

_REPEATS = 15


class Shape(msgspec.Struct, frozen=True):
    """The model: ``(outputs, inputs)`` of the linear layers of one decoder layer, and of the vocabulary."""

    linear: tuple[tuple[int, int], ...]
    layers: int
    vocabulary: tuple[int, int]


SMOLLM2_135M = Shape(((960, 576), (576, 576), (3072, 576), (576, 1536)), 30, (49_152, 576))


class Rates:
    """Seconds of matrix products, measured when first asked for."""

    def __init__(self, shape: Shape, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._shape = shape
        self._known: dict[tuple[int, int, int], float] = {}

    def model_s(self, rows: int) -> float:
        """All linear layers of the model over ``rows`` rows."""
        return self._shape.layers * sum(self._product_s(rows, *size) for size in self._shape.linear)

    def vocabulary_s(self, rows: int) -> float:
        """The projection to the vocabulary, or back."""
        return self._product_s(rows, *self._shape.vocabulary)

    def gflops(self, rows: int) -> tuple[float, float]:
        """Rates of the model's layers and of the vocabulary's, in GFLOP/s."""
        linear = 2 * rows * self._shape.layers * sum(a * b for a, b in self._shape.linear)
        vocabulary = 2 * rows * self._shape.vocabulary[0] * self._shape.vocabulary[1]
        return linear / self.model_s(rows) / 1e9, vocabulary / self.vocabulary_s(rows) / 1e9

    def _product_s(self, rows: int, outputs: int, inputs: int) -> float:
        key = (rows, outputs, inputs)
        if rows == 0:
            return 0.0
        if key not in self._known:
            x, weight = self._torch.randn(rows, inputs), self._torch.randn(outputs, inputs)
            times = []
            for _ in range(_REPEATS):
                started = time.perf_counter()
                self._torch.nn.functional.linear(x, weight)
                times.append(time.perf_counter() - started)
            self._known[key] = min(times[1:])
        return self._known[key]


def bound_s(counts: Counts, rates: Rates) -> tuple[float, float]:
    """Seconds of sampling and of training."""
    per_step = -(-counts.sampled_rows // max(1, counts.sampling_steps - 1))
    drawn = -(-counts.drawn_rows // counts.sampling_steps)
    sampling = (
        rates.model_s(counts.prompt_rows)
        + (counts.sampling_steps - 1) * rates.model_s(per_step)
        + counts.sampling_steps * rates.vocabulary_s(drawn)
    )
    return sampling, 2 * rates.model_s(counts.trained_rows) + 2 * rates.vocabulary_s(counts.predicting_rows)


class _Figures(msgspec.Struct, frozen=True):
    steps: list[Pair]


class _File(msgspec.Struct, frozen=True):
    figures: _Figures


def main() -> int:
    """Prints the bound of every step beside what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_loop.arithmetic")
    parser.add_argument("file", type=Path, metavar="OUT", help="written by python -m benchmarks.first_loop")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    options = parser.parse_args()
    pairs = msgspec.json.decode(options.file.read_bytes(), type=_File).figures.steps
    rates = Rates(SMOLLM2_135M, options.threads)
    for rows in (64, 180, 400):
        linear, vocabulary = rates.gflops(rows)
        print(f"{rows:4} rows: {linear:4.0f} GFLOP/s in the layers, {vocabulary:4.0f} in the vocabulary")
    print("step   rollout   bound        training   bound")
    shares: dict[str, list[float]] = {"rollout": [], "training": []}
    for pair in pairs:
        sampling, training = bound_s(pair.counts, rates)
        ours = pair.ours
        shares["rollout"].append(sampling / ours.rollout_s)
        line = f"{ours.step:4}   {_beside(ours.rollout_s, sampling)}"
        if ours.trained:
            shares["training"].append(training / ours.train_s)
            line += f"   {_beside(ours.train_s, training)}"
        print(line)
    for name, values in shares.items():
        if values:
            print(f"{name}: the matrix products are {100 * statistics.median(values):.0f}% (median)")
    return 0


def _beside(measured_s: float, bound: float) -> str:
    return f"{measured_s:5.2f} s   {bound:5.2f} s {100 * bound / measured_s:3.0f}%"


if __name__ == "__main__":
    raise SystemExit(main())
