"""Methods that vLLM mixes into its worker class: snapshots are read, checked and activated here.

A snapshot is staged in a thread while the engine steps; activation only moves finished tensors into place.
The adapter is pinned, since vLLM would otherwise evict it one day and look for its path on disk.
"""

import json
import threading
import time
import traceback
from typing import Any

import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from art_dataplane.arrays import decode
from art_dataplane.snapshot import SnapshotManifest, read_tensors
from art_vllm_runtime import cpu_lora
from art_vllm_runtime.engine_swap import ADAPTER_ID


class SnapshotRejectedError(Exception):
    """The snapshot cannot be served by this model; nothing was changed."""


class ArtWorkerExtension:
    """Mixed into vLLM's worker, so it has no constructor; its state starts with the first staging."""

    _art_stage: "_Staging | None" = None
    _art_active: LoRAModel | None = None
    _art_previous: LoRAModel | None = None
    _art_version: int | None = None
    _art_steps: "list[tuple[int | None, dict[str, int]]] | None" = None

    def art_stage(self, manifest: bytes) -> None:
        """Starts to stage; what was staged before and not activated is forgotten."""
        self._art_stage = _Staging(self.model_runner.lora_manager, decode(manifest, SnapshotManifest))

    def art_staged(self) -> dict[str, Any]:
        """``done``, ``error`` (why it cannot be activated, or None), ``read_ms``."""
        stage = self._art_stage
        if stage is None:
            return {"done": True, "error": "nothing is staged", "read_ms": 0.0}
        return {"done": stage.done.is_set(), "error": stage.error, "read_ms": stage.read_ms}

    def art_activate(self, version: int) -> dict[str, Any]:
        """Activates what is staged. Called only while the engine stands still; never raises."""
        stage = self._art_stage
        if stage is None or stage.model is None or stage.manifest.version != version:
            return {"error": f"version {version} is not staged", "digest": ""}
        self._art_previous, self._art_stage = self._art_active, None
        try:
            self._art_put(stage.model)
        except Exception:  # noqa: BLE001 - the engine core decides what an error on one of several workers means
            return {"error": traceback.format_exc(limit=3), "digest": ""}
        self._art_active, self._art_version = stage.model, version
        return {"error": None, "digest": stage.manifest.digest}

    def art_restore(self) -> bool:
        """Takes back the last activation; False when that failed too, and what is active is in doubt."""
        try:
            if self._art_previous is None:
                self._art_manager().remove_adapter(ADAPTER_ID)
            else:
                self._art_put(self._art_previous)
        except Exception:  # noqa: BLE001 - reported as doubt, which quarantines the service
            traceback.print_exc()
            return False
        self._art_active = self._art_previous
        return True

    def art_trace(self) -> list[tuple[int | None, dict[str, int]]]:
        """What was computed since the last call: per engine step the version in place and tokens per request.

        The first call starts the recording and returns nothing.
        """
        if self._art_steps is None:
            self._art_record()
        steps = self._art_steps
        assert steps is not None
        taken, steps[:] = list(steps), []
        return taken

    def _art_record(self) -> None:
        steps = self._art_steps = []
        execute_model = self.model_runner.execute_model

        def recorded(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            steps.append((self._art_version, dict(scheduler_output.num_scheduled_tokens)))
            return execute_model(scheduler_output, *args, **kwargs)

        self.model_runner.execute_model = recorded

    def _art_manager(self) -> Any:
        return self.model_runner.lora_manager._adapter_manager

    def _art_put(self, model: LoRAModel) -> None:
        manager = self._art_manager()
        cpu_lora.forget()
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(model)
        manager.activate_adapter(ADAPTER_ID)
        manager.pin_adapter(ADAPTER_ID)


class _Staging:
    """Reads one snapshot into tensors of its own, in a thread."""

    def __init__(self, worker_manager: Any, manifest: SnapshotManifest) -> None:
        self.manifest = manifest
        self.done = threading.Event()
        self.error: str | None = None
        self.model: LoRAModel | None = None
        self.read_ms = 0.0
        self._workers = worker_manager
        threading.Thread(target=self._run, name="art-stage", daemon=True).start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self.model = _build(self._workers, self.manifest)
        except Exception as error:  # noqa: BLE001 - the caller polls and gets the text
            self.error = f"{type(error).__name__}: {error}"
        self.read_ms = (time.monotonic() - began) * 1e3
        self.done.set()


def _build(workers: Any, manifest: SnapshotManifest) -> LoRAModel:
    helper = PEFTHelper.from_dict(
        json.loads(manifest.peft_config) | {"vllm_max_position_embeddings": workers.max_position_embeddings}
    )
    helper.validate_legal(workers.lora_config)
    manager = workers._adapter_manager
    mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
    with read_tensors(manifest) as snapshot:
        tensors = {
            name: torch.frombuffer(bytearray(item.data), dtype=getattr(torch, item.dtype)).reshape(item.shape)
            for name, item in snapshot.items()
        }
    model = LoRAModel.from_lora_tensors(
        lora_model_id=ADAPTER_ID,
        tensors=tensors,
        peft_helper=helper,
        device="cpu",
        dtype=workers.lora_config.lora_dtype,
        model_vocab_size=workers.vocab_size,
        weights_mapper=mapper.get_rename_mapper() if mapper is not None else None,
        skip_prefixes=getattr(manager.model, "lora_skip_prefixes", None),
    )
    _check(manager, model, workers.lora_config.max_lora_rank)
    return model


def _check(manager: Any, model: LoRAModel, max_rank: int) -> None:
    """Every tensor of the snapshot has a place in the model, and fits."""
    problems: list[str] = []
    for name, lora in model.loras.items():
        if lora.lora_a is None or lora.lora_b is None:
            problems.append(f"{name} lacks its lora_{'A' if lora.lora_a is None else 'B'}")
            continue
        layer, part = _layer(manager, name)
        if layer is None:
            problems.append(f"{name} is no layer of this model that takes an adapter")
            continue
        if not hasattr(layer.base_layer, "output_size"):
            problems.append(f"{name} is not a linear layer; adapters of embeddings and heads are not served")
            continue
        rank, inputs = lora.lora_a.shape
        outputs, other_rank = lora.lora_b.shape
        expected = _sizes(layer, part)
        if rank != other_rank or rank > max_rank or (expected is not None and (inputs, outputs) != expected):
            problems.append(
                f"{name} has A {tuple(lora.lora_a.shape)} and B {tuple(lora.lora_b.shape)}; the layer takes "
                f"and gives {expected or 'unknown'} features, and the rank is at most {max_rank}"
            )
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise SnapshotRejectedError("; ".join(problems[:5]) + more)


def _layer(manager: Any, name: str) -> tuple[Any, int | None]:
    """The layer of that name, or the packed layer that it is a part of and its place there."""
    if name in manager.modules:
        return manager.modules[name], None
    parent, _, leaf = name.rpartition(".")
    for packed, parts in manager.packed_modules_mapping.items():
        if leaf in parts and f"{parent}.{packed}" in manager.modules:
            return manager.modules[f"{parent}.{packed}"], parts.index(leaf)
    return None, None


def _sizes(layer: Any, part: int | None) -> tuple[int, int] | None:
    """Features in and out of a linear layer over all ranks; None where they do not follow from the layer."""
    base = layer.base_layer
    if part is None:
        return int(base.input_size), int(base.output_size)
    if (
        base.tp_size > 1
    ):  # keys and values may be replicated, so the sizes of the parts are not those of the model
        return None
    return int(base.input_size), int(base.output_sizes[part])
