"""Stalls, deaths, restarts, and ends that nobody orders."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import openai
import psutil
import pytest

from art_serving import (
    ActivationError,
    EngineOptions,
    Health,
    LocalLauncher,
    MemberError,
    ModelService,
    PreflightError,
    ServiceClosedError,
    ServingError,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = [10, 20, 30, 40, 50, 60, 70]


async def until(read, holds, deadline_s=30.0):
    async with asyncio.timeout(deadline_s):
        while not holds(value := await read()):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)
    return value


def long_request(client, model="tiny", tokens=1500):
    return asyncio.ensure_future(
        client.completions.create(
            model=model, prompt=PROMPT, max_tokens=tokens, extra_body={"ignore_eos": True}
        )
    )


async def test_an_idle_service_uses_no_cpu(service):
    state = await until(service.state, lambda state: state.members[0].stats.unfinished == 0)
    member = state.members[0]
    processes = [psutil.Process(pid) for pid in (member.pid, *member.engine_pids)]

    def used():
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = used()
    await asyncio.sleep(3)
    assert used() - before < 0.15


async def test_a_stopped_engine_is_a_stalled_service_and_recovers(service, openai_client, snapshots):
    state = await service.state()
    (engine,) = state.members[0].engine_pids
    request = long_request(openai_client)
    await until(service.state, lambda state: state.members[0].stats.running == 1)
    os.kill(engine, signal.SIGSTOP)
    try:
        began = time.monotonic()
        stalled = await until(service.state, lambda state: state.health is not Health.READY, 10)
        assert stalled.health is Health.STALLED
        assert "1 requests run, but no engine step ended for" in stalled.detail
        assert time.monotonic() - began < 4
        url = service.base_url.removesuffix("/v1") + "/health"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert (answer.status, (await answer.json())["health"]) == (503, "stalled")
        assert (await service.until_unhealthy()).health is Health.STALLED
        with pytest.raises(ActivationError, match="did not answer art_stage before the deadline") as caught:
            await service.activate(snapshots.make(19), 0.5)
        assert not caught.value.quarantined
    finally:
        os.kill(engine, signal.SIGCONT)
    assert (await request).usage.completion_tokens == 1500
    assert (await service.state()).health is Health.READY
    assert (await service.activate(snapshots.make(20), 30)).version == 20


async def test_a_stopped_api_server_is_a_stalled_service_after_the_stall_timeout(service):
    """The timeout is 2 s here; a look takes 0.3 s."""
    pid = (await service.state()).members[0].pid
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        state = await service.state(0.3)
        assert (state.health, time.monotonic() - stopped < 1.5) == (Health.READY, True)
        assert "did not answer /art/state within 0.3 s; it is asked again" in state.detail
        state = await until(
            lambda: service.state(0.3), lambda state: state.health is not Health.READY, deadline_s=10
        )
        assert 1.8 < time.monotonic() - stopped < 6
        assert state.health is Health.STALLED
        assert state.detail.startswith("member 0 of service 'policy'")
        assert "(the limit, stall_timeout_s, is 2 s)" in state.detail
        assert f"its process {pid} was stopped; `kill -CONT {pid}` lets it go on" in state.detail
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(service.state, lambda state: state.health is Health.READY and not state.detail, 10)


async def test_a_server_that_is_stopped_for_longer_than_a_look_and_goes_on_has_not_failed(service):
    pid = (await service.state()).members[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        looks = [await service.state(0.3) for _ in range(3)]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert {look.health for look in looks} == {Health.READY}
    assert all("asked again" in look.detail for look in looks)
    state = await until(service.state, lambda state: not state.detail, 10)
    assert state.health is Health.READY


class Lease:
    def __init__(self, manifest):
        self.manifest = manifest
        self.released = 0

    def release(self):
        self.released += 1


async def test_a_killed_engine_is_named_and_a_restart_serves_the_committed_version(
    environment, make_spec, snapshots, record_of, reference, tmp_path
):
    service = await ModelService.start(
        make_spec("phoenix"), LocalLauncher(environment), log_folder=tmp_path, options=EngineOptions()
    )
    async with service:
        async with openai.AsyncOpenAI(base_url=service.base_url, api_key=service.api_key) as client:
            with pytest.raises(openai.NotFoundError, match="phoenix"):
                await client.completions.create(model="phoenix", prompt=PROMPT, max_tokens=3)
            assert "tiny" in [model.id for model in (await client.models.list()).data]
        lease = Lease(snapshots.make(21))
        await service.activate(lease.manifest, 30, lease=lease)
        client = openai.AsyncOpenAI(base_url=service.base_url, api_key=service.api_key, max_retries=0)
        async with client:
            state = await service.state()
            (engine,) = state.members[0].engine_pids
            request = long_request(client)
            await until(service.state, lambda state: state.members[0].stats.running == 1)
            os.kill(engine, signal.SIGKILL)
            with pytest.raises(
                openai.APIStatusError, match=rf"engine core \(pid {engine}\) was killed by SIGKILL"
            ):
                await request
        failed = await until(service.state, lambda state: state.health is Health.FAILED, 10)
        assert f"engine core (pid {engine}) was killed by SIGKILL" in failed.detail
        assert str(tmp_path) in failed.detail, "it says where the log is"
        with pytest.raises(ActivationError):
            await service.activate(snapshots.make(22), 5)
        await until(lambda: processes_below(state.members[0].pid, engine), lambda found: not found, 10)

        await service.restart(120)
        assert lease.released == 0
        state = await service.state()
        assert (state.health, state.version, state.members[0].version) == (Health.READY, 21, 21)
        assert state.members[0].incarnation == 1
        async with openai.AsyncOpenAI(base_url=service.base_url, api_key=service.api_key) as client:
            answer = await client.completions.create(model="phoenix", prompt=PROMPT, max_tokens=8)
            record = record_of(answer.choices[0])
            np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)

        # The supervisor dies: the server and the engine die with it, and the state says so.
        member = state.members[0]
        supervisor = psutil.Process(member.pid).ppid()
        os.kill(supervisor, signal.SIGKILL)
        await until(lambda: processes_below(member.pid, *member.engine_pids), lambda found: not found, 10)
        state = await until(service.state, lambda state: state.health is Health.FAILED, 10)
        assert f"supervisor (pid {supervisor}): killed by SIGKILL" in state.detail
    assert lease.released == 1
    assert (await service.state()).health is Health.STOPPED
    with pytest.raises(ServiceClosedError):
        await service.activate(snapshots.make(23), 5)
    with pytest.raises(ServiceClosedError):
        await service.restart(5)


async def processes_below(*pids):
    return [
        pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


PARENT = """
import asyncio, pathlib, sys
import msgspec
from art_serving import EngineOptions, Environment, LocalLauncher, ModelService
from art_topology import ModelServiceSpec

async def main():
    spec = msgspec.json.decode(sys.argv[1], type=ModelServiceSpec)
    environment = Environment(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), "")
    service = await ModelService.start(spec, LocalLauncher(environment), log_folder=pathlib.Path(sys.argv[4]))
    print("up", (await service.state()).members[0].base_url, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def temporary(monkeypatch):
    """An empty folder for temporary files, with a name short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="art-test-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


async def test_nothing_outlives_a_killed_parent(environment, make_spec, tmp_path, temporary):
    segments = set(os.listdir("/dev/shm"))
    parent = subprocess.Popen(  # noqa: ASYNC220 - it is what the test kills
        [
            *(sys.executable, "-c", PARENT, msgspec.json.encode(make_spec("orphan")).decode()),
            *(str(environment.path), str(environment.python), str(tmp_path / "logs")),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    try:
        line = await asyncio.wait_for(asyncio.to_thread(parent.stdout.readline), 120)
        url = line.split()[1]
        family = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        assert len(family) >= 3
        assert list(temporary.iterdir())
    finally:
        parent.kill()
        parent.wait()
    began = time.monotonic()
    await until(lambda: processes_below(*family), lambda found: not found, 20)
    print(f"{len(family)} processes gone after {time.monotonic() - began:.2f} s")
    await until(lambda: asyncio.to_thread(lambda: list(temporary.iterdir())), lambda found: not found, 5)
    # Segments of the data plane name their owner; those of other runs on this machine do not count.
    owners = tuple(f"-{pid}-" for pid in (parent.pid, *family))
    left = set(os.listdir("/dev/shm")) - segments
    assert not [name for name in left if not name.startswith("art-") or any(o in name for o in owners)]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)


async def test_a_member_that_cannot_start_says_why_and_leaves_nothing(
    environment, make_spec, tmp_path, temporary
):
    launcher = LocalLauncher(environment)
    with pytest.raises(PreflightError, match=r"no config.json"):
        await ModelService.start(make_spec(model_path=str(tmp_path)), launcher, log_folder=tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(MemberError, match=r"API server \(pid \d+\) while starting: exit status 1") as caught:
        await ModelService.start(make_spec(model_path=str(tmp_path)), launcher, log_folder=tmp_path)
    assert "unheard_of" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).endswith(".log)")
    assert not list(temporary.iterdir())


async def test_a_deadline_and_a_cancellation_end_a_start(environment, make_spec, tmp_path, temporary):
    me = psutil.Process()
    children = {child.pid for child in me.children(recursive=True)}
    with pytest.raises(MemberError, match=r"was not ready within 1 s"):
        await ModelService.start(
            make_spec("late"), LocalLauncher(environment), deadline_s=1.0, log_folder=tmp_path
        )
    (log,) = tmp_path.glob("late*.log")
    assert re.search(r"ART stops this server; .*\nART stopped this server", log.read_text(), re.DOTALL)
    assert {child.pid for child in me.children(recursive=True)} <= children
    starting = asyncio.ensure_future(
        ModelService.start(make_spec("cancelled"), LocalLauncher(environment), log_folder=tmp_path)
    )
    await until(lambda: asyncio.to_thread(lambda: list(tmp_path.glob("cancelled*.log"))), bool, 10)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    assert not list(temporary.iterdir())
    assert {child.pid for child in me.children(recursive=True)} <= children


async def test_what_this_version_cannot_serve_is_refused(environment, make_spec, tmp_path):
    from art_topology import GpuPlacement, ModelServiceMemberSpec

    gpu = (ModelServiceMemberSpec(placement=GpuPlacement(host_id="here", gpus=(0,))),)
    with pytest.raises(ServingError, match="a GPU placement"):
        await ModelService.start(make_spec(members=gpu), LocalLauncher(environment), log_folder=tmp_path)
    with pytest.raises(ServingError, match="temporal_sharing"):
        await ModelService.start(
            make_spec(temporal_sharing=True), LocalLauncher(environment), log_folder=tmp_path
        )
