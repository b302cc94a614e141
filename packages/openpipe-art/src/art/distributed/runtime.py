"""The runtime: actors on hosts, for as long as it lives.

``start`` runs on hosts that a launcher attached; ``start_local`` owns one loopback worker and is the same
otherwise.
Invariant: after :meth:`ArtRuntime.close` no actor process of this runtime runs, whatever failed on the way.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from art.awaiting import must_be_awaited
from art.calls import checked_call
from art.checks import require, runtime_checks
from art.distributed.actor_process import ACTOR_TMPDIR_VARIABLE, CPUS_VARIABLE
from art.distributed.callables import AsyncFunction, InstalledAsyncCallable
from art.distributed.errors import CloseError, RuntimeFailure, StartupError
from art.distributed.failures import FailureWatch
from art.distributed.handle import ActorHandle
from art.distributed.host_meshes import HostMeshes
from art.distributed.rollouts import RolloutExecutor
from art.distributed.run import Announce, announce_on_stderr
from art.distributed.service import reference_of
from art_topology import ModelServiceSpec, RuntimeTopology

if TYPE_CHECKING:
    from art.distributed.services import RunningModelService, ServiceSettings
    from art.distributed.trainer import MegatronTrainer
    from art_trainer.specs import TrainerRuntimeSpec

_CLOSE_ACTORS_SHARE = 0.6


class ArtRuntime:
    """The runtime on its hosts. Made by :meth:`start` or :meth:`start_local`; close it, or use ``async
    with``.

    It belongs to the event loop it was made on. ``hosts`` are the attached hosts, ``topology`` is what was
    compiled for them, ``failures`` watches the parts that rollouts depend on.
    """

    def __init__(self, hosts: HostMeshes, topology: RuntimeTopology, *, owns_hosts: bool) -> None:
        self.hosts = hosts
        self.topology = topology
        self._owns_hosts = owns_hosts
        self._actors: dict[str, ActorHandle] = {}
        self._serial = itertools.count()
        self.failures = FailureWatch()
        for host in hosts.hosts:
            self.failures.add_end(f"host {host.index}", host.wait_ended)
        self._closed = False

    @classmethod
    @must_be_awaited
    async def start(cls, host_mesh: HostMeshes, topology: RuntimeTopology) -> "ArtRuntime":
        """Starts on hosts that are attached already, as ``ArtLaunchContext.host_mesh`` is; they stay the
        launcher's.

        Raises:
            StartupError: the topology has another number of hosts.
        """
        if len(topology.hosts) != len(host_mesh):
            raise StartupError(
                f"the topology has {len(topology.hosts)} hosts, the host mesh {len(host_mesh)}; compile it "
                "for the hosts of this launch, for example with launch.homogeneous_cluster(...)"
            )
        return cls(host_mesh, topology, owns_hosts=False)

    @classmethod
    @must_be_awaited
    async def start_local(
        cls,
        topology: RuntimeTopology,
        *,
        port: int = 0,
        python_path: Sequence[str | Path] = (),
        announce: Announce = announce_on_stderr,
    ) -> "ArtRuntime":
        """Starts on this machine alone, on one loopback worker that the runtime owns.

        Args:
            topology: a compiled topology of one host.
            port: of the worker; 0 selects a fresh one.
            python_path: folders that actors import from, besides what this Python has installed.
            announce: told of each earlier run that ended without closing, after cleaning up behind it.

        Raises:
            StartupError: the topology has several hosts, or a part did not come up.
            PreflightError: this machine lacks something; nothing was started.
        """
        if len(topology.hosts) != 1:
            raise StartupError(
                f"start_local takes a topology of one host, this one has {len(topology.hosts)}; "
                "use ArtRuntime.start with an attached host mesh"
            )
        require(runtime_checks(port), "the runtime cannot start here")
        hosts = await HostMeshes.start_local(
            port=port,
            python_path=python_path,
            startup_timeout_s=topology.startup_timeout_s,
            announce=announce,
        )
        return cls(hosts, topology, owns_hosts=True)

    @property
    def run_id(self) -> str:
        """Names this run's processes, segments and temporary folder."""
        return self.hosts.run.run_id

    @property
    def temp_dir(self) -> Path:
        """A folder on the controller's host that is removed when the run ends, however it ends."""
        return self.hosts.run.temp_dir

    @property
    def actors(self) -> Mapping[str, ActorHandle]:
        """All actors that were spawned and not stopped, by name."""
        return dict(self._actors)

    def child_environment(self) -> dict[str, str]:
        """The environment for a process that the controller itself starts and that must end with the run."""
        return self.hosts.run.child_environment()

    async def spawn_actor(
        self,
        name: str,
        cls: type,
        *arguments: Any,
        host: int = 0,
        env: Mapping[str, str | None] | None = None,
        cpus: Sequence[int] = (),
        deadline_s: float | None = None,
    ) -> ActorHandle:
        """Starts a process on a host that holds one object of ``cls`` (see :mod:`art.distributed.service`).

        Args:
            name: its role in errors and in ``ps``, unique among living actors, for example ``trainer rank
                0``.
            cls: a top-level class, importable on that host.
            arguments: for its constructor; messages, decoded by the constructor's annotations.
            host: index of the host.
            env: environment variables, set before Python starts; ``None`` removes one.
            cpus: CPU numbers that the process is bound to; all when empty.
            deadline_s: until the object is made, in seconds; the topology's ``startup_timeout_s`` by default.

        Raises:
            RemoteError: the import or the constructor raised.
            ActorDied: the process ended before that.
            ActorTimeout: it was not made in time.
            ServiceError: the class cannot be imported by its name, or an argument cannot be sent.
            RuntimeFailure: the name is taken, there is no such host, or the runtime is closed.
        """
        self._check_spawn(name, host)
        limit = self.topology.startup_timeout_s if deadline_s is None else deadline_s
        slug = re.sub(r"[^A-Za-z0-9_]+", "_", name)[:40]
        monarch_name = f"art_{self.run_id}_{next(self._serial)}_{slug}"
        handle = ActorHandle(name, monarch_name, cls, host, self.hosts.hosts[host].ended)
        self._actors[name] = handle
        reference = msgspec.msgpack.encode(reference_of(cls, arguments, self.hosts.python_path))
        try:
            self._spawn_process(handle, monarch_name, host, env or {}, cpus)
            await handle.started(reference, limit)
        except BaseException:
            self._actors.pop(name, None)  # it is gone when the runtime was closed meanwhile
            await handle.discard()
            raise
        return handle

    def _check_spawn(self, name: str, host: int) -> None:
        if self._closed:
            raise RuntimeFailure(f"the runtime is closed; {name!r} cannot be started")
        if not 0 <= host < len(self.hosts):
            raise RuntimeFailure(
                f"there is no host {host}; the runtime has {len(self.hosts)}, counted from 0"
            )
        known = self._actors.get(name)
        if known is not None and known.alive:
            raise RuntimeFailure(f"an actor named {name!r} runs already: {known.role}")

    def _spawn_process(
        self,
        handle: ActorHandle,
        monarch_name: str,
        host: int,
        env: Mapping[str, str | None],
        cpus: Sequence[int],
    ) -> None:
        from monarch.actor import default_bootstrap_cmd

        from art.distributed.actor import ServiceActor

        variables = dict(env)
        if cpus:
            variables[CPUS_VARIABLE] = ",".join(str(cpu) for cpu in cpus)
        command = default_bootstrap_cmd().with_env(variables)
        command.args = ["-m", "art.distributed.actor_process", handle.name, *command.args]
        proc_mesh = self.hosts.hosts[host].mesh.spawn_procs(
            per_host={"procs": 1}, name=monarch_name, bootstrap_command=command
        )
        handle.attach(proc_mesh.spawn(monarch_name, ServiceActor), proc_mesh)

    async def stop_actor(self, handle: ActorHandle, deadline_s: float = 10.0) -> None:
        """Closes an actor's object and ends its process.

        Args:
            handle: of the actor.
            deadline_s: seconds for its ``close``; the process is killed after that.

        Raises:
            ActorDied: the process ended while its object was being closed.
            RemoteError: the object's ``close`` raised; the process has ended all the same.
            ActorTimeout: it did not close in time; the process is ended, too.
        """
        self._actors.pop(handle.name, None)
        self.failures.remove(handle.name)
        await handle.stop(deadline_s)

    async def start_trainer(
        self,
        spec: "TrainerRuntimeSpec",
        *,
        name: str = "trainer rank 0",
        host: int = 0,
        deadline_s: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> "MegatronTrainer":
        """Starts a warm trainer rank and loads its model.

        Args:
            spec: what must be equal for a warm trainer to be used again.
            name: its role in errors.
            host: index of the host.
            deadline_s: until the model is loaded, in seconds; ten times ``startup_timeout_s`` by default.
            progress: called with a line for the user.

        Raises:
            RuntimeFailure: it did not start, or could not load the model.
        """
        from art.distributed.trainer import MegatronTrainer, TrainerService
        from art_trainer import rank_environment

        limit = 10 * self.topology.startup_timeout_s if deadline_s is None else deadline_s
        # torch makes cache folders in TMPDIR as soon as it is used; in the run's folder they go with the run.
        env = {**rank_environment(spec.threads), ACTOR_TMPDIR_VARIABLE: str(self.temp_dir)}
        handle = await self.spawn_actor(name, TrainerService, spec, host=host, env=env, deadline_s=limit)
        trainer = MegatronTrainer(handle, self.topology.rpc_timeout_s)
        try:
            report = await trainer.load(limit)
        except BaseException:
            await self.stop_actor(handle)
            raise
        if progress is not None:
            progress(
                f"trainer loaded: {report.base_parameters / 1e6:.1f} M parameters, "
                f"{report.trained_parameters / 1e6:.2f} M of them trained, in {report.duration_s:.1f} s"
            )
        return trainer

    async def start_model_service(
        self,
        spec: ModelServiceSpec,
        settings: "ServiceSettings",
        *,
        host: int = 0,
        deadline_s: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> "RunningModelService":
        """Starts one vLLM deployment and waits until it serves.

        Args:
            spec: the service as the topology has it.
            settings: the model's folder, the engine's options.
            host: index of the host of its leader.
            deadline_s: until it serves, in seconds; the specification's ``startup_timeout_s`` by default.
            progress: called with a line for the user.

        Raises:
            RuntimeFailure: a member did not get ready, with its cause.
        """
        from art.distributed.services import ModelServiceHost, start_service

        limit = spec.startup_timeout_s if deadline_s is None else deadline_s
        handle = await self.spawn_actor(
            f"model service {spec.name}", ModelServiceHost, spec, settings, host=host
        )
        try:
            service = await start_service(
                handle,
                spec.name,
                deadline_s=limit,
                rpc_timeout_s=self.topology.rpc_timeout_s,
                progress=progress,
            )
        except BaseException:
            await self.stop_actor(handle)
            raise
        self.failures.add(handle.name, service.failure)
        return service

    @checked_call
    def rollout_executor(
        self,
        function: InstalledAsyncCallable | AsyncFunction,
        *,
        target_workers: int,
        rollout_timeout_s: float = 1800.0,
        env: Mapping[str, str | None] | None = None,
    ) -> RolloutExecutor:
        """An executor that runs ``function`` in worker processes on the hosts' free CPU slots.

        Args:
            function: the rollout: a top-level async function, or what refers to one.
            target_workers: how many processes.
            rollout_timeout_s: seconds that one rollout may take.
            env: environment variables of the workers; ``None`` removes one.

        Raises:
            CallableError: it is not a top-level async function that another process could import.
            RuntimeFailure: there are fewer free CPU slots.
        """
        if not isinstance(function, InstalledAsyncCallable):
            function = InstalledAsyncCallable.from_callable(function)
        return RolloutExecutor(
            self, function, target_workers=target_workers, rollout_timeout_s=rollout_timeout_s, env=env or {}
        )

    @must_be_awaited
    async def close(self, deadline_s: float = 8.0) -> None:
        """Closes all actors together, then, for a local runtime, its worker and its run. Repeatable.

        Args:
            deadline_s: for the whole, in seconds; what has not ended then is killed.

        Raises:
            CloseError: what failed on the way; everything was ended all the same.
        """
        if self._closed:
            return
        self._closed = True
        self.failures.close()
        handles, self._actors = list(self._actors.values()), {}
        share = deadline_s * _CLOSE_ACTORS_SHARE
        results = await asyncio.gather(*(handle.stop(share) for handle in handles), return_exceptions=True)
        failures = [result for result in results if isinstance(result, Exception)]
        for handle in handles:
            handle.release("stopped")
        if self._owns_hosts:
            try:
                await self.hosts.close(deadline_s - share)
            except CloseError as error:
                failures.extend(error.exceptions)
        if failures:
            raise CloseError(f"runtime {self.run_id} closed with failures", failures)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except CloseError as failed:
            if error is None or not failed.follows(error):
                raise
