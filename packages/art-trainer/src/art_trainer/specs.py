"""What a trainer is asked to do, as frozen data.

:class:`TrainerRuntimeSpec` is what must be equal for a warm rank to be used again without loading;
:class:`TrainingRunSpec` is one run on it; a job is one optimizer step of that run. All three are plain
MessagePack or JSON through msgspec; unknown fields are refused.
"""

import math
import re
from typing import Literal

import msgspec

from art_dataplane import PackedBatchRef
from art_topology import MegatronTopologyConfig
from art_trainer.errors import SpecError

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a dense decoder layer, under Hugging Face's names."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(message)


class LoraSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LoRA adapter: ``y += (alpha / rank) * B A x`` on each target; A is random at first and B zero.

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.

    Args:
        rank: rows of A and columns of B, at least 1.
        alpha: above 0; scales what the adapter adds.
        target_modules: Hugging Face names of linear layers inside a decoder layer, at least one; by default
            all.

    Raises:
        SpecError: a value is out of its range, or a target is named twice.
    """

    rank: int = 8
    alpha: float = 16.0
    target_modules: tuple[str, ...] = ALL_LINEAR

    def __post_init__(self) -> None:
        _require(self.rank >= 1, f"LoraSpec.rank is {self.rank}; it must be at least 1")
        _require(self.alpha > 0, f"LoraSpec.alpha is {self.alpha}; it must be above 0")
        _require(
            len(self.target_modules) > 0, "LoraSpec.target_modules is empty; name at least one linear layer"
        )
        _require(
            len(set(self.target_modules)) == len(self.target_modules),
            f"LoraSpec.target_modules has repeated names: {', '.join(self.target_modules)}",
        )

    @property
    def scale(self) -> float:
        """``alpha / rank``."""
        return self.alpha / self.rank


class AdamWSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """AdamW's constants; the learning rate is a job's. Source: Loshchilov and Hutter 2019, arXiv:1711.05101.

    Args:
        beta1: decay of the mean of the gradients, in ``[0, 1)``.
        beta2: decay of the mean of their squares, in ``[0, 1)``.
        epsilon: added to the root of the latter, above 0.
        weight_decay: decoupled from the gradient, not negative.

    Raises:
        SpecError: a value is out of its range.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require(0 <= self.beta1 < 1, f"AdamWSpec.beta1 is {self.beta1}; it must be in [0, 1)")
        _require(0 <= self.beta2 < 1, f"AdamWSpec.beta2 is {self.beta2}; it must be in [0, 1)")
        _require(self.epsilon > 0, f"AdamWSpec.epsilon is {self.epsilon}; it must be above 0")
        _require(
            self.weight_decay >= 0, f"AdamWSpec.weight_decay is {self.weight_decay}; it must not be negative"
        )


class TrainerRuntimeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What must be equal for a warm trainer to be used again.

    Args:
        model_path: a folder with ``config.json`` and safetensors weights in Hugging Face's layout.
        packed_sequence_length: most physical tokens in one packed row.
        topology: the parallel layout. This version runs one rank: every size must be 1.
        lora: the adapter that is trained; its weights are always float32.
        optimizer: AdamW's constants.
        dtype: of the frozen base weights and the activations.
        seed: of the adapter's first weights.
        snapshot_capacity: snapshots that may be held at once by all sinks together.
        threads: threads that the rank computes with.
        base_model_name: written to ``adapter_config.json``; the model's path when empty.

    Raises:
        SpecError: the model's path is empty or a number is below 1.
    """

    model_path: str
    packed_sequence_length: int
    topology: MegatronTopologyConfig = MegatronTopologyConfig()
    lora: LoraSpec = LoraSpec()
    optimizer: AdamWSpec = AdamWSpec()
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    snapshot_capacity: int = 3
    threads: int = 1
    base_model_name: str = ""

    def __post_init__(self) -> None:
        _require(bool(self.model_path), "TrainerRuntimeSpec.model_path is empty")
        _require(
            self.packed_sequence_length >= 1,
            f"TrainerRuntimeSpec.packed_sequence_length is {self.packed_sequence_length}; at least 1",
        )
        _require(
            self.snapshot_capacity >= 1,
            f"TrainerRuntimeSpec.snapshot_capacity is {self.snapshot_capacity}; it must be at least 1",
        )
        _require(self.threads >= 1, f"TrainerRuntimeSpec.threads is {self.threads}; it must be at least 1")


class TrainingRunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run on a warm trainer.

    Args:
        run_id: names the run in generations and in its shared memory; letters, digits, ``_``, ``.`` and
            ``-``.
        generations_dir: where durable generations go; none are written when it is None.
        resume_from: ``None`` starts at version 0 and requires a folder without generations; ``"latest"``
            takes the generation of the highest version, or version 0 when there is none; anything else
            names a generation.

    Raises:
        SpecError: the id is malformed, or ``resume_from`` is given without ``generations_dir``.
    """

    run_id: str
    generations_dir: str | None = None
    resume_from: str | None = None

    def __post_init__(self) -> None:
        _require(
            re.fullmatch(r"[A-Za-z0-9_.\-]{1,96}", self.run_id) is not None,
            f"TrainingRunSpec.run_id is {self.run_id!r}; 1 to 96 letters, digits, '_', '.' or '-'",
        )
        _require(
            self.resume_from is None or self.generations_dir is not None,
            f"TrainingRunSpec.resume_from is {self.resume_from!r} but generations_dir is None; set both",
        )


class RlTrainJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="rl"):
    """One policy-gradient optimizer step over one packed batch.

    The loss of an entry is ``-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`` with
    ``ratio = exp(logprob - old_logprob)``; the batch's loss is the sum of ``weight * loss`` over the sum of
    weights. Source: Schulman et al. 2017, arXiv:1707.06347, equation 7.

    Args:
        job_id: names the job in its events.
        batch: the packed batch.
        expected_version: the policy version the rank must be at; any other fails the job without training.
        resulting_version: ``expected_version + 1``.
        learning_rate: of this step.
        clip_low: how far the ratio may fall below 1 before the gradient stops, in ``(0, 1]``.
        clip_high: how far it may rise above 1, above 0.
        max_grad_norm: global gradient norm that larger gradients are scaled down to.
        snapshot_deadline_s: seconds to wait for a free snapshot slot before the job fails untrained.

    Raises:
        SpecError: a value is out of its range, or ``resulting_version`` is not the next version.
    """

    job_id: str
    batch: PackedBatchRef
    expected_version: int
    resulting_version: int
    learning_rate: float
    clip_low: float = 0.2
    clip_high: float = 0.2
    max_grad_norm: float = 1.0
    snapshot_deadline_s: float = 60.0

    def __post_init__(self) -> None:
        _require(bool(self.job_id), "RlTrainJob.job_id is empty")
        _require(
            self.expected_version >= 0, f"RlTrainJob.expected_version is {self.expected_version}; at least 0"
        )
        _require(
            self.resulting_version == self.expected_version + 1,
            f"RlTrainJob.resulting_version is {self.resulting_version}; one optimizer step from version "
            f"{self.expected_version} results in {self.expected_version + 1}",
        )
        _require(
            math.isfinite(self.learning_rate) and self.learning_rate >= 0,
            f"RlTrainJob.learning_rate is {self.learning_rate}; it must be finite and not negative",
        )
        _require(0 < self.clip_low <= 1, f"RlTrainJob.clip_low is {self.clip_low}; it must be in (0, 1]")
        _require(self.clip_high > 0, f"RlTrainJob.clip_high is {self.clip_high}; it must be above 0")
        _require(
            self.max_grad_norm > 0, f"RlTrainJob.max_grad_norm is {self.max_grad_norm}; it must be above 0"
        )
        _require(
            self.snapshot_deadline_s > 0,
            f"RlTrainJob.snapshot_deadline_s is {self.snapshot_deadline_s}; it must be above 0",
        )


TrainJob = RlTrainJob
"""Every kind of job; grows into a tagged union."""
