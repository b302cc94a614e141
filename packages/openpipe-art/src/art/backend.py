"""MegatronBackend: trains registered models with warm Megatron ranks and serves them with vLLM.

It owns an ``art.distributed.model_run.ModelRun`` for each model and, unless it was given one, the runtime.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from art.awaiting import must_be_awaited
from art.calls import checked_call
from art.checks import Check, TrainingPlan, require, training_checks, warnings
from art.checks.cache import build_checks
from art.checks.training import folder_checks
from art.distributed.errors import CloseError
from art.distributed.model_run import ModelRun, RunSettings
from art.distributed.placement import MOST_LORA_RANK, Placed, place
from art.distributed.runtime import ArtRuntime
from art.errors import ConfigError
from art.megatron_config import MegatronRuntimeConfig, get_megatron_runtime_config
from art.model import TrainableModel
from art.settings import SEEDS, flag, instance, number, one_of, whole_number
from art.train_config import TrainConfig, TrainResult
from art.trajectory_groups import TrajectoryGroup, checked_groups
from art_topology import RuntimeTopology, compile_topology, local_cluster
from art_topology.addresses import is_loopback
from art_trainer import LoraSpec

_LAST_CHANCE_S = 2.0  # for the last version to be durable, when an error ends the run


class MegatronBackend:
    """Use it as ``async with MegatronBackend(...) as backend``, then register one or more models.

    Args:
        runtime: where actors run; by default an own one on this machine, ended by :meth:`close`.
        path: folder under which runs are kept, as ``PATH/PROJECT/RUN_NAME``.
        run_dir: the run's folder itself, in place of one under ``path``.
        lora_rank: rank of the adapter on all linear layers, 1 to 512.
        lora_alpha: scales what the adapter adds: ``alpha / rank``; above 0.
        seed: of the adapter's first weights and of the server's sampling, from 0.
        dtype: of the base weights in the server; the trainer computes in float32.
        resume: continue the run in its folder from its last durable generation.
        threads: that the trainer and the server compute with, each; by default the CPUs this process may use.
        step_timeout_s: longest wait for one sign of progress of a step, in seconds.
        tool_parser: vLLM's name of the parser that finds the model's tool calls in what it says, such as
            ``hermes`` or ``pythonic``. Requests may then have ``tools``, and choices ``tool_calls``;
            without it the server refuses such requests.
        progress: called with a line for the user while long things start, and with what a step does.
        notice: called with a line that the user should read, such as a check that warns; `report.line` of a
            :class:`art.reporting.RunReport` does. By default ``progress``, or standard error without one.

    Raises:
        SettingError: a value is of a wrong type or out of its range, or there is no argument of a name.
    """

    @checked_call
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
        tool_parser: str | None = None,
        progress: Callable[[str], None] | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._owns_runtime = runtime is None
        self._path = Path(path)
        self._run_dir = Path(run_dir) if run_dir is not None else None
        self._lora = LoraSpec(
            rank=whole_number("lora_rank", lora_rank, 8, at_most=MOST_LORA_RANK),
            alpha=number("lora_alpha", lora_alpha, 16.0, above=0),
        )
        self._seed = whole_number("seed", seed, 0, at_least=SEEDS[0], at_most=SEEDS[1])
        one_of("dtype", dtype, ("float32", "bfloat16"))
        self._dtype: Literal["float32", "bfloat16"] = dtype
        self._resume = flag("resume", resume, True)
        cpus = len(os.sched_getaffinity(0))
        self._threads = cpus if threads is None else whole_number("threads", threads, cpus, at_most=4096)
        self._step_timeout_s = number("step_timeout_s", step_timeout_s, 900.0, above=0)
        if tool_parser is not None:
            instance("tool_parser", tool_parser, str, "tool_parser='hermes', or another parser of vLLM's")
        self._tool_parser = tool_parser
        self._progress = progress or (lambda line: None)
        self._notice = notice or progress or _on_stderr
        self._models: dict[str, ModelRun] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close(60.0 if error is None else _LAST_CHANCE_S)
        except CloseError as failed:
            if error is None or not failed.follows(error):
                raise

    def run_dir(self, model: TrainableModel) -> Path:
        """The folder that the model's run is kept in."""
        return self._run_dir or self._path / model.project / (model.run_name or model.name)

    @must_be_awaited
    async def register(self, model: TrainableModel) -> None:
        """Starts a trainer and a model service for ``model`` and makes its first version active.

        Raises:
            ConfigError: the model is registered already, or the backend is closed.
            PreflightError: ``base_model`` is no model folder, the run's folder holds a run and ``resume`` is
                off, or this machine lacks memory, disk, shared memory or a port; nothing was started.
            TopologyError: the hosts have no place for it.
            RuntimeFailure: a part did not start; what had started is ended.
        """
        if self._closed:
            raise ConfigError("this backend is closed; make a new one")
        if model.name in self._models:
            raise ConfigError(f"model {model.name!r} is registered with this backend already")
        config = get_megatron_runtime_config()
        topology = self._topology()
        placed = place(
            topology,
            parallel=config.topology,
            service_name=model.name,
            base_model=model.base_model,
            max_model_len=config.packed_sequence_length,
            max_lora_rank=self._lora.rank,
            dtype=self._dtype,
            seed=self._seed,
        )
        checks = await asyncio.to_thread(self._checks, model, placed, config, topology)
        require(checks, f"model {model.name!r} cannot be trained here")
        for check in warnings(checks):
            self._notice(f"model {model.name!r}: {check.line()}")
        runtime = await self._started_runtime(topology)
        registered = ModelRun(
            model, placed, config, runtime, self._run_settings(model), self._progress, self._notice
        )
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

    def _checks(
        self, model: TrainableModel, placed: Placed, config: MegatronRuntimeConfig, topology: RuntimeTopology
    ) -> list[Check]:
        """All that can be known before a process starts, where the parts will run on this machine."""
        hosts = {topology.hosts[index].address for index in (placed.trainer_host, placed.service_host)}
        taken = {listener for run in self._models.values() for listener in run.listeners}
        plan = TrainingPlan(
            base_model=Path(model.base_model),
            run_dir=self.run_dir(model),
            resume=self._resume,
            packed_sequence_length=config.packed_sequence_length,
            snapshot_capacity=config.snapshot_capacity,
            lora_rank=self._lora.rank,
            dtype=placed.service.dtype,
            kv_cache_bytes=placed.service.kv_cache_bytes,
            endpoints=tuple(listener for listener in placed.listeners if listener not in taken),
        )
        if not all(is_loopback(address) for address in hosts):
            return folder_checks(plan)
        return [*training_checks(plan), *build_checks()]

    def _run_settings(self, model: TrainableModel) -> RunSettings:
        return RunSettings(
            folder=self.run_dir(model).resolve(),
            lora=self._lora,
            seed=self._seed,
            resume=self._resume,
            threads=self._threads,
            step_timeout_s=self._step_timeout_s,
            tool_parser=self._tool_parser,
        )

    def _topology(self) -> RuntimeTopology:
        if self._runtime is not None:
            return self._runtime.topology
        slots = max(4, len(os.sched_getaffinity(0)) + 2)
        return compile_topology(cluster=local_cluster(cpu_slots=slots))

    async def _started_runtime(self, topology: RuntimeTopology) -> ArtRuntime:
        if self._runtime is None:
            self._runtime = await ArtRuntime.start_local(topology)
        return self._runtime

    @must_be_awaited
    async def train(
        self,
        model: TrainableModel,
        groups: Iterable[TrajectoryGroup],
        *,
        config: TrainConfig | None = None,
    ) -> TrainResult:
        """Takes one optimizer step on the groups; the new policy is active when it returns.

        Args:
            model: registered with this backend.
            groups: finished rollouts; each trajectory is trained on once.
            config: the step's constants; by default those of :class:`art.TrainConfig`.

        Raises:
            ConfigError: the model is not registered, or there is nothing in the groups.
            RecordError: a trajectory carries no token records.
            GroupsLost: records are gone with the worker that held them; it names the groups concerned.
            RuntimeFailure: a part died or failed; it is named, with its cause.
        """
        registered = self._models.get(model.name)
        if registered is None:
            raise ConfigError(
                f"model {model.name!r} is not registered; `await model.register(backend)` first"
            )
        async with registered.lock:
            return await registered.train(checked_groups(groups), config or TrainConfig())

    @must_be_awaited
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


def _on_stderr(line: str) -> None:
    print(f"art: {line}", file=sys.stderr, flush=True)
