"""The smallest limit counts, whichever version of control groups sets it."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from art.checks import machine

GIB = 2**30


def test_without_groups_the_machine_is_the_limit(fake):
    assert machine.memory() == machine.Memory(12 * GIB, 16 * GIB, "machine")


def test_a_group_of_version_2_bounds_memory_and_gives_its_file_cache_back(fake):
    fake.groups("0::/app.slice/job\n")
    fake.group("", {"cgroup.controllers": "cpu memory"})
    fake.group("app.slice", {"memory.max": "max", "memory.current": 9 * GIB, "memory.stat": ""})
    files = {"memory.max": 8 * GIB, "memory.current": 5 * GIB, "memory.stat": f"anon 1\ninactive_file {GIB}"}
    fake.group("app.slice/job", files)
    found = machine.memory()
    assert (found.available, found.limit) == (4 * GIB, 8 * GIB)
    assert found.bound_by == f"control group {fake.cgroups}/app.slice/job"


def test_a_group_above_counts_as_well(fake):
    fake.groups("0::/outer/inner\n")
    fake.group("", {"cgroup.controllers": "memory"})
    fake.group("outer", {"memory.max": 2 * GIB, "memory.current": GIB, "memory.stat": ""})
    fake.group("outer/inner", {"memory.max": 6 * GIB, "memory.current": GIB, "memory.stat": ""})
    assert (machine.memory().available, machine.memory().limit) == (GIB, 2 * GIB)


def test_a_group_of_version_1_bounds_memory(fake):
    fake.groups("7:cpu,cpuacct:/\n4:memory:/jobs/one\n0::/\n")
    unlimited = {"memory.limit_in_bytes": 2**63 - 4096, "memory.usage_in_bytes": 9 * GIB, "memory.stat": ""}
    fake.group("memory", unlimited)
    fake.group("memory/jobs", unlimited)
    stat = f"inactive_file 5\ntotal_inactive_file {GIB}"
    fake.group(
        "memory/jobs/one",
        {"memory.limit_in_bytes": 6 * GIB, "memory.usage_in_bytes": 3 * GIB, "memory.stat": stat},
    )
    assert (machine.memory().available, machine.memory().limit) == (4 * GIB, 6 * GIB)


def test_in_a_container_the_root_is_the_own_group(fake):
    """The path is the host's and does not exist inside."""
    fake.groups("4:memory:/docker/0123\n")
    files = {"memory.limit_in_bytes": 3 * GIB, "memory.usage_in_bytes": GIB, "memory.stat": ""}
    fake.group("memory", files)
    assert machine.memory().available == 2 * GIB


def test_a_broken_group_is_no_limit(fake):
    fake.groups("4:memory:/x\nnonsense\n0::/x\n")
    fake.group("memory/x", {"memory.limit_in_bytes": "many", "memory.usage_in_bytes": 1})
    assert machine.memory().bound_by == "machine"


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.cfs_quota_us": 50_000, "cpu.cfs_period_us": 100_000}, 0.5),
        ({"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100_000}, None),
        ({"cpu.cfs_quota_us": "broken"}, None),
    ],
)
def test_a_quota_of_version_1_bounds_the_cpus(fake, files, cpus):
    fake.groups("2:cpu,cpuacct:/job\n")
    fake.group("cpu,cpuacct/job", files)
    affinity = float(len(os.sched_getaffinity(0)))
    assert machine.usable_cpus() == (affinity if cpus is None else cpus)


@pytest.mark.parametrize(("text", "cpus"), [("75000 100000", 0.75), ("max 100000", None)])
def test_a_quota_of_version_2_bounds_the_cpus(fake, text, cpus):
    fake.groups("0::/job\n")
    fake.group("", {"cgroup.controllers": "cpu"})
    fake.group("job", {"cpu.max": text})
    affinity = float(len(os.sched_getaffinity(0)))
    assert machine.usable_cpus() == (affinity if cpus is None else cpus)


def test_this_machine_agrees_with_the_c_library():
    found = machine.memory()
    page = os.sysconf("SC_PAGE_SIZE")
    assert 0 < found.available <= found.limit <= os.sysconf("SC_PHYS_PAGES") * page
    if found.bound_by == "machine":
        assert found.available >= 0.8 * os.sysconf("SC_AVPHYS_PAGES") * page


def test_a_folder_that_is_not_there_has_the_space_of_its_parent(tmp_path):
    there = machine.space(tmp_path / "not" / "yet")
    usage = shutil.disk_usage(tmp_path)
    assert there.existing == tmp_path.resolve()
    assert there.total == pytest.approx(usage.total, rel=0.2)
    assert there.free == pytest.approx(usage.free, rel=0.2)
    assert there.device == os.stat(tmp_path).st_dev


def test_links_lead_to_the_real_device(tmp_path):
    (tmp_path / "link").symlink_to("/dev/shm")
    assert machine.space(tmp_path / "link" / "new").device == os.stat("/dev/shm").st_dev


def test_a_taken_port_is_in_use_and_a_free_one_is_not():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert machine.port_problem("127.0.0.1", holder.getsockname()[1]) == "is in use"
    assert machine.port_problem("127.0.0.1", 0) is None


def test_an_address_of_another_machine_cannot_be_listened_on():
    problem = machine.port_problem("192.0.2.1", 0)
    assert problem is not None
    assert "cannot be listened on" in problem


def test_processes_can_be_tied_to_their_parent_here():
    assert machine.process_control_problem() is None


def test_an_old_kernel_is_told(monkeypatch):
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert "pidfd_open" in (machine.process_control_problem() or "")


def test_gpus_are_named_by_the_driver(fake):
    assert machine.gpus() == () or Path("/dev/nvidiactl").exists()
    for number in (0, 1):
        folder = fake.proc / "driver" / "nvidia" / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 5\n")
    assert machine.gpus() == (machine.Gpu("NVIDIA H200"), machine.Gpu("NVIDIA H200"))


def test_the_processors_flags_are_read(fake):
    (fake.proc / "cpuinfo").write_text("model name : Example\nflags : fpu avx2 avx512f\n\nflags : other\n")
    assert machine.cpu_flags() == {"fpu", "avx2", "avx512f"}
    (fake.proc / "cpuinfo").unlink()
    assert machine.cpu_flags() == frozenset()
