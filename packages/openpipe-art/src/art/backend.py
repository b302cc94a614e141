"""MegatronBackend: trains registered models with warm Megatron ranks and serves them with vLLM.

It owns an ``art.distributed.model_run.ModelRun`` for each model and, unless it was given one, the runtime.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from art.distributed.errors import CloseError
from art.distributed.model_run import ModelRun, RunSettings
from art.distributed.placement import place
from art.distributed.runtime import ArtRuntime
from art.errors import ConfigError
from art.megatron_config import get_megatron_runtime_config
from art.model import TrainableModel
from art.train_config import TrainConfig, TrainResult
from art.trajectories import TrajectoryGroup
from art_topology import compile_topology, local_cluster
from art_trainer import LoraSpec


class MegatronBackend:
    """Use it as ``async with MegatronBackend(...) as backend``, then register one or more models.

    Args:
        runtime: where actors run; by default an own one on this machine, ended by :meth:`close`.
        path: folder under which runs are kept, as ``PATH/PROJECT/RUN_NAME``.
        run_dir: the run's folder itself, in place of one under ``path``.
        lora_rank, lora_alpha: of the adapter on all linear layers.
        seed: of the adapter's first weights and of the server's sampling.
        dtype: of the base weights in the server; the trainer computes in float32.
        resume: continue the run in its folder from its last durable generation.
        threads: that the trainer and the server compute with, each; by default the CPUs this process may use.
        step_timeout_s: longest wait for one sign of progress of a step, in seconds.
        progress: called with a line for the user while long things start.
    """

    def __init__(
        self,
        *,
        runtime: ArtRuntime | None = None,
        path: str | Path = ".art",
        run_dir: str | Path | None = None,
        lora_rank: int = 8,
        lora_alpha: float = 16.0,
        seed: int = 0,
        dtype: Literal["float32", "bfloat16"] = "float32",
        resume: bool = False,
        threads: int | None = None,
        step_timeout_s: float = 900.0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._owns_runtime = runtime is None
        self._path = Path(path)
        self._run_dir = Path(run_dir) if run_dir is not None else None
        self._lora = LoraSpec(rank=lora_rank, alpha=lora_alpha)
        self._seed = seed
        self._dtype: Literal["float32", "bfloat16"] = dtype
        self._resume = resume
        self._threads = threads or len(os.sched_getaffinity(0))
        self._step_timeout_s = step_timeout_s
        self._progress = progress or (lambda line: None)
        self._models: dict[str, ModelRun] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(60.0 if kind is None else 2.0)

    def run_dir(self, model: TrainableModel) -> Path:
        """The folder that the model's run is kept in."""
        return self._run_dir or self._path / model.project / (model.run_name or model.name)

    async def register(self, model: TrainableModel) -> None:
        """Starts a trainer and a model service for ``model`` and makes its first version active.

        Raises:
            ConfigError: the model is registered already, ``base_model`` is no model folder, or the run's
            folder
                holds a run and ``resume`` is off.
            TopologyError: the hosts have no place for it.
            RuntimeFailure: a part did not start; what had started is ended.
        """
        if self._closed:
            raise ConfigError("this backend is closed; make a new one")
        if model.name in self._models:
            raise ConfigError(f"model {model.name!r} is registered with this backend already")
        _check_model_folder(Path(model.base_model))
        self._check_run_folder(self.run_dir(model))
        config = get_megatron_runtime_config()
        runtime = await self._started_runtime()
        placed = place(
            runtime.topology,
            parallel=config.topology,
            service_name=model.name,
            base_model=model.base_model,
            max_model_len=config.packed_sequence_length,
            max_lora_rank=self._lora.rank,
            dtype=self._dtype,
            seed=self._seed,
        )
        registered = ModelRun(model, placed, config, runtime, self._run_settings(model), self._progress)
        try:
            await registered.start()
        except BaseException:
            await asyncio.shield(registered.discard())
            raise
        self._models[model.name] = registered
        endpoint = registered.service.endpoint
        model.inference_base_url = endpoint.base_url
        model.inference_api_key = endpoint.api_key
        model.inference_model_name = endpoint.model_name

    def _check_run_folder(self, folder: Path) -> None:
        kept = sorted(path.name for path in (folder / "generations").glob("step-*"))
        if kept and not self._resume:
            raise ConfigError(
                f"{folder} holds a run already ({len(kept)} generations, the newest {kept[-1]}); choose "
                "another folder, or pass resume=True to MegatronBackend to continue it"
            )

    def _run_settings(self, model: TrainableModel) -> RunSettings:
        return RunSettings(
            folder=self.run_dir(model).resolve(),
            lora=self._lora,
            seed=self._seed,
            resume=self._resume,
            threads=self._threads,
            step_timeout_s=self._step_timeout_s,
        )

    async def _started_runtime(self) -> ArtRuntime:
        if self._runtime is None:
            slots = max(4, len(os.sched_getaffinity(0)) + 2)
            topology = compile_topology(cluster=local_cluster(cpu_slots=slots))
            self._runtime = await ArtRuntime.start_local(topology)
        return self._runtime

    async def train(
        self,
        model: TrainableModel,
        groups: Iterable[TrajectoryGroup],
        *,
        config: TrainConfig | None = None,
    ) -> TrainResult:
        """Takes one optimizer step on the groups; the new policy is active when it returns.

        Raises:
            ConfigError: the model is not registered, or there is nothing in the groups.
            RecordError: a trajectory carries no token records.
            RuntimeFailure: a part died or failed; it is named, with its cause.
        """
        registered = self._models.get(model.name)
        if registered is None:
            raise ConfigError(
                f"model {model.name!r} is not registered; `await model.register(backend)` first"
            )
        async with registered.lock:
            return await registered.train(list(groups), config or TrainConfig())

    async def close(self, durability_s: float = 60.0) -> None:
        """Waits for durability, then ends trainers, services and, where owned, the runtime. Repeatable.

        Args:
            durability_s: how long to wait for the last version to be durable, in seconds.

        Raises:
            CloseError: what failed, durability of the last version included; all was ended anyway.
        """
        if self._closed:
            return
        self._closed = True
        failures: list[Exception] = []
        for registered in self._models.values():
            failures += await registered.close(durability_s)
            registered.model.forget_server()
        self._models.clear()
        if self._owns_runtime and self._runtime is not None:
            try:
                await self._runtime.close()
            except CloseError as error:
                failures += error.exceptions
        if failures:
            raise CloseError("the backend closed with failures", failures)


def _check_model_folder(folder: Path) -> None:
    """Checks what can be seen without loading anything.

    Raises:
        ConfigError: it is no folder of a Hugging Face model with safetensors weights and a tokenizer.
    """
    if not folder.is_dir():
        raise ConfigError(f"base_model {str(folder)!r} is no folder; give the folder of a Hugging Face model")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ConfigError(f"base_model {folder} is no complete model: it has no {', no '.join(missing)}")
