"""What a trainer is asked to do, as frozen data.

:class:`TrainerRuntimeSpec` is what must be equal for a warm rank to be used again without loading;
:class:`TrainingRunSpec` is one run on it; a job is one optimizer step of that run. All three are plain
MessagePack or JSON through msgspec; unknown fields are refused.
"""

import math
import re
from collections.abc import Callable
from typing import Literal

import msgspec

from art_dataplane import PackedBatchRef
from art_topology import MegatronTopologyConfig
from art_trainer.errors import SpecError

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a dense decoder layer, under Hugging Face's names."""


MOST_RANK = 4096
"""More than any adapter's: as many as a wide layer has rows."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(message)


def _number(
    field: str,
    value: object,
    example: float,
    rule: str,
    holds: Callable[[float], bool],
    *,
    infinite: bool = False,
) -> None:
    """Checks a number: an int or a float that is finite (or infinite, where that has a meaning).

    Raises:
        SpecError: it is something else, or ``holds`` is not true of it; ``rule`` says that in words.
    """
    wanted = f"a number {rule}, for example {field.partition('.')[2]}={example!r}"
    _require(
        isinstance(value, int | float) and not isinstance(value, bool),
        f"{field} is the {type(value).__name__} {value!r}; it must be {wanted}",
    )
    assert isinstance(value, int | float)
    finite = math.isfinite(value) or (infinite and value == math.inf)
    _require(finite and holds(value), f"{field} is {value!r}; it must be {wanted}")


def _whole_number(field: str, value: object, example: int, least: int, most: int) -> None:
    """Checks an int in a range.

    Raises:
        SpecError: it is something else.
    """
    wanted = f"a whole number from {least} to {most}, for example {field.partition('.')[2]}={example}"
    _require(
        isinstance(value, int) and not isinstance(value, bool),
        f"{field} is the {type(value).__name__} {value!r}; it must be {wanted}",
    )
    assert isinstance(value, int)
    _require(least <= value <= most, f"{field} is {value}; it must be {wanted}")


def _instance(field: str, value: object, kind: type) -> None:
    _require(
        isinstance(value, kind),
        f"{field} is the {type(value).__name__} {value!r}; it must be of {kind.__name__}",
    )


class LoraSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LoRA adapter: ``y += (alpha / rank) * B A x`` on each target; A is random at first and B zero.

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.

    Args:
        rank: rows of A and columns of B, 1 to 4096.
        alpha: above 0; scales what the adapter adds.
        target_modules: Hugging Face names of linear layers inside a decoder layer, at least one; by default
            all.

    Raises:
        SpecError: a value is of a wrong type or out of its range, or a target is named twice.
    """

    rank: int = 8
    alpha: float = 16.0
    target_modules: tuple[str, ...] = ALL_LINEAR

    def __post_init__(self) -> None:
        _whole_number("LoraSpec.rank", self.rank, 8, 1, MOST_RANK)
        _number("LoraSpec.alpha", self.alpha, 16.0, "above 0", lambda alpha: alpha > 0)
        _instance("LoraSpec.target_modules", self.target_modules, tuple)
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
        weight_decay: decoupled from the gradient, in ``[0, 1)``.

    Raises:
        SpecError: a value is of a wrong type or out of its range.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _number("AdamWSpec.beta1", self.beta1, 0.9, "in [0, 1)", lambda beta: 0 <= beta < 1)
        _number("AdamWSpec.beta2", self.beta2, 0.999, "in [0, 1)", lambda beta: 0 <= beta < 1)
        _number("AdamWSpec.epsilon", self.epsilon, 1e-8, "above 0", lambda epsilon: epsilon > 0)
        _number("AdamWSpec.weight_decay", self.weight_decay, 0.01, "in [0, 1)", lambda decay: 0 <= decay < 1)


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
        SpecError: the model's path is empty, or a value is of a wrong type or out of its range.
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
        name = "TrainerRuntimeSpec"
        _instance(f"{name}.model_path", self.model_path, str)
        _require(bool(self.model_path), f"{name}.model_path is empty; give the folder of a model")
        _instance(f"{name}.topology", self.topology, MegatronTopologyConfig)
        _instance(f"{name}.lora", self.lora, LoraSpec)
        _instance(f"{name}.optimizer", self.optimizer, AdamWSpec)
        _require(
            self.dtype in ("float32", "bfloat16"),
            f"{name}.dtype is {self.dtype!r}; it must be 'float32' or 'bfloat16'",
        )
        _whole_number(f"{name}.packed_sequence_length", self.packed_sequence_length, 2048, 1, 2**24)
        _whole_number(f"{name}.seed", self.seed, 0, 0, 2**32 - 1)
        _whole_number(f"{name}.snapshot_capacity", self.snapshot_capacity, 3, 1, 1024)
        _whole_number(f"{name}.threads", self.threads, 1, 1, 4096)


SNAPSHOT_LEASE_S = 1800.0
"""Seconds that a sink may be at work on one snapshot unless told otherwise."""


class TrainingRunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run on a warm trainer.

    Args:
        run_id: names the run in generations and in its shared memory; letters, digits, ``_``, ``.`` and
            ``-``.
        generations_dir: where durable generations go; none are written when it is None.
        resume_from: ``None`` starts at version 0 and requires a folder without generations; ``"latest"``
            takes the generation of the highest version, or version 0 when there is none; anything else
            names a generation.
        snapshot_lease_s: seconds that a sink may be at work on one snapshot before its slot is taken back.

    Raises:
        SpecError: the id is malformed, ``resume_from`` is given without ``generations_dir``, or the seconds
            are not positive.
    """

    run_id: str
    generations_dir: str | None = None
    resume_from: str | None = None
    snapshot_lease_s: float = SNAPSHOT_LEASE_S

    def __post_init__(self) -> None:
        name = "TrainingRunSpec.snapshot_lease_s"
        _number(name, self.snapshot_lease_s, SNAPSHOT_LEASE_S, "above 0", lambda seconds: seconds > 0)
        _instance("TrainingRunSpec.run_id", self.run_id, str)
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
    ``ratio = exp(logprob - old_logprob)``; the batch's loss is the sum of ``weight * loss``, with the weights
    as they were packed (:class:`art_dataplane.LossWeightRule`). Source: Schulman et al. 2017,
    arXiv:1707.06347, equation 7. Where the batch has ``loss_kl_weight`` the sum of ``kl_weight * k3`` is
    added, ``k3 = exp(d) - d - 1`` with ``d = reference_logprob - logprob``: Shao et al. 2024,
    arXiv:2402.03300, equation 4.

    Args:
        job_id: names the job in its events.
        batch: the packed batch.
        expected_version: the policy version the rank must be at; any other fails the job without training.
        resulting_version: ``expected_version + 1``.
        learning_rate: of this step, from 0 to 1.
        clip_low: how far the ratio may fall below 1 before the gradient stops, in ``(0, 1]``.
        clip_high: how far it may rise above 1, above 0.
        max_grad_norm: global norm that larger gradients are scaled down to; ``inf`` leaves them.
        snapshot_deadline_s: seconds to wait for a free snapshot slot before the job fails untrained.

    Raises:
        SpecError: a value is of a wrong type or out of its range, or ``resulting_version`` is not the next
            version.
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
        _whole_number("RlTrainJob.expected_version", self.expected_version, 0, 0, 2**31 - 2)
        _require(
            self.resulting_version == self.expected_version + 1,
            f"RlTrainJob.resulting_version is {self.resulting_version}; one optimizer step from version "
            f"{self.expected_version} results in {self.expected_version + 1}",
        )
        name = "RlTrainJob"
        _number(f"{name}.learning_rate", self.learning_rate, 5e-4, "from 0 to 1", lambda rate: 0 <= rate <= 1)
        _number(f"{name}.clip_low", self.clip_low, 0.2, "in (0, 1]", lambda clip: 0 < clip <= 1)
        _number(f"{name}.clip_high", self.clip_high, 0.2, "above 0", lambda clip: clip > 0)
        _number(
            f"{name}.max_grad_norm", self.max_grad_norm, 1.0, "above 0", lambda norm: norm > 0, infinite=True
        )
        _number(f"{name}.snapshot_deadline_s", self.snapshot_deadline_s, 60.0, "above 0", lambda s: s > 0)


TrainJob = RlTrainJob
"""Every kind of job; grows into a tagged union."""
