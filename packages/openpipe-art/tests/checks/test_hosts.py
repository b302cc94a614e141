"""Folders, sockets and limits that cannot do are refused with the next step; nothing is made by looking."""

import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from art.checks import State, hosts, machine
from art.checks.hosts import disk_check, folder_check, host_checks, ports_check, shared_memory_check
from art.distributed import run


def test_this_machine_will_do():
    assert [check.line() for check in host_checks() if check.state is State.FAILURE] == []


def test_a_folder_that_can_be_made_is_not_made(tmp_path):
    check = folder_check("run folder", tmp_path / "a" / "b", "choose another")
    assert check.state is State.OK
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        check = folder_check("run folder", folder, "choose another")
        assert check.state is State.FAILURE
        assert str(folder) in check.found
        assert "is a file" in check.found
        assert check.remedy == "choose another"


def test_a_name_that_is_too_long_is_refused(tmp_path):
    check = folder_check("run folder", tmp_path / ("x" * 300), "choose another")
    assert check.state is State.FAILURE
    assert "File name too long" in check.found


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert folder_check("run folder", tmp_path / "a" / "run", "choose another").state is State.FAILURE


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    locked = tmp_path / "locked"
    locked.mkdir()
    real = os.access  # root may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked and real(path, mode))
    check = folder_check("run folder", locked / "run", "choose another")
    assert check.state is State.FAILURE
    assert f"no permission in {locked}" in check.found


def test_a_read_only_file_system_is_named(tmp_path, monkeypatch):
    fields = (4096, 4096, 10**6, 10**6, 10**6, 0, 0, 0, os.ST_RDONLY, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    check = folder_check("run folder", tmp_path / "run", "choose another")
    assert check.state is State.FAILURE
    assert check.found.endswith("the file system is read-only")


@pytest.mark.parametrize("folder", ["/proc/art/run", "/proc/self", "/sys/art"])
def test_no_run_can_be_kept_in_what_the_kernel_shows_as_files(folder):
    check = folder_check("run folder", Path(folder), "choose another")
    assert check.state is State.FAILURE
    assert "cannot be made: " in check.found
    assert "free" not in check.found


def test_proc_has_no_room_for_a_run():
    assert disk_check("disk", Path("/proc/art/run"), 1, "choose another").state is State.FAILURE


def test_a_full_disk_says_how_much_to_free(tmp_path, monkeypatch):
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    check = disk_check("disk", tmp_path / "new", 1_000_000, "choose another file system")
    assert check.state is State.FAILURE
    assert "41 KB free" in check.found
    assert check.needed == "about 1 MB"
    assert check.remedy == "free 959 KB, or choose another file system"
    assert disk_check("disk", tmp_path, 10 * 4096, "").state is State.OK


def test_a_taken_port_is_named_with_its_purpose():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        (check,) = ports_check([("127.0.0.1", port, "the worker"), ("127.0.0.1", 0, "anything")])
    assert check.state is State.FAILURE
    assert f"port {port} of 127.0.0.1 is in use" in check.line()
    assert "the worker" in check.needed
    assert "0 for any free one" in check.remedy


def test_the_temporary_folder_is_as_short_as_a_run_needs(tmp_path, monkeypatch):
    """The runtime refuses what the check refuses, and takes what it takes."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        length = machine.LONGEST_TEMPORARY_FOLDER - len(short) - 1
        fits, too_long = Path(short) / ("x" * length), Path(short) / ("y" * (length + 1))
        for folder, state in ((fits, State.OK), (too_long, State.FAILURE)):
            folder.mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(folder))
            check = hosts.temporary_folder_check()
            assert check.state is state
            if state is State.OK:
                assert run._make_temp_dir("0" * 12).parent == folder
            else:
                assert f"{machine.LONGEST_TEMPORARY_FOLDER + 1} characters" in check.found
                assert "export TMPDIR=/tmp" in check.remedy
                with pytest.raises(run.StartupError):
                    run._make_temp_dir("0" * 12)


def test_a_temporary_folder_that_is_a_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(machine, "temporary_folder", lambda: tmp_path / "file")
    monkeypatch.setattr(machine, "LONGEST_TEMPORARY_FOLDER", 1000)
    check = hosts.temporary_folder_check()
    assert check.state is State.FAILURE
    assert "cannot be written" in check.found


def test_a_state_folder_below_a_file_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "file" / "state"))
    check = hosts.state_folder_check()
    assert check.state is State.FAILURE
    assert "ART_STATE_DIR" in check.remedy


@pytest.mark.parametrize(
    ("free", "state"), [(10 << 20, State.FAILURE), (50 << 20, State.WARNING), (200 << 20, State.OK)]
)
def test_shared_memory_must_hold_the_snapshots(tmp_path, room, free, state):
    room(tmp_path, free)
    check = shared_memory_check(48 << 20, "adapters", tmp_path)
    assert check.state is state
    assert ("--shm-size" in check.remedy) == (state is not State.OK)


def test_no_shared_memory_is_a_failure(tmp_path):
    assert shared_memory_check(1, "adapters", tmp_path / "none").state is State.FAILURE


def test_few_open_files_are_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "process_limit", lambda name: 256)
    check = hosts.open_files_check()
    assert check.state is State.WARNING
    assert check.remedy == "raise it: ulimit -n 1024"


@pytest.mark.parametrize(("option", "kib", "needed"), [("v", 3_000_000, "8.0 GiB"), ("f", 1000, "1.0 GB")])
def test_limits_of_a_process_are_refused_with_the_command_that_lifts_them(option, kib, needed):
    program = (
        "from art.checks import hosts; check = hosts.process_limits_check(); "
        "print(check.state.name, check.found, check.needed, check.remedy, sep='|')"
    )
    result = subprocess.run(
        ["bash", "-c", f'ulimit -{option} {kib} && exec "$0" -c "$1"', sys.executable, program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    state, found, wanted, remedy = result.stdout.strip().split("|")
    assert state == "FAILURE"
    assert found.startswith(f"ulimit -{option}: ")
    assert wanted == f"ulimit -{option}: {needed}"
    assert remedy == f"ulimit -{option} unlimited"


def test_a_process_without_limits_passes(monkeypatch):
    monkeypatch.setattr(machine, "process_limit", lambda name: sys.maxsize)
    assert hosts.process_limits_check().state is State.OK


@pytest.mark.parametrize(
    ("flags", "cpus", "state"),
    [
        ({"avx2", "avx512f"}, 8, State.OK),
        ({"avx2"}, 1, State.WARNING),
        ({"avx2"}, 0.5, State.WARNING),
        ({"sse4_2"}, 8, State.FAILURE),
    ],
)
def test_the_processor_needs_avx2(monkeypatch, flags, cpus, state):
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(machine, "usable_cpus", lambda: float(cpus))
    assert hosts.cpu_check().state is state


def test_another_system_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Darwin", "x", "24", "v", "arm64")))
    check = hosts.system_check()
    assert check.state is State.FAILURE
    assert "Linux container" in check.remedy


def test_so_few_open_files_that_a_start_fails_are_refused(monkeypatch):
    monkeypatch.setattr(machine, "process_limit", lambda name: hosts.LEAST_OPEN_FILES - 1)
    assert hosts.open_files_check().state is State.FAILURE
    monkeypatch.setattr(machine, "process_limit", lambda name: hosts.LEAST_OPEN_FILES)
    assert hosts.open_files_check().state is State.WARNING


@pytest.mark.parametrize(("left", "state"), [(20, State.FAILURE), (200, State.WARNING), (2000, State.OK)])
def test_threads_that_are_left_to_the_user(monkeypatch, left, state):
    monkeypatch.setattr(machine, "threads_of_user", lambda: 30)
    monkeypatch.setattr(machine, "process_limit", lambda name: 30 + left)
    monkeypatch.setattr(machine, "bound_by_process_limit", lambda: True)
    check = hosts.threads_check()
    assert check.state is state
    assert check.found == f"{left} left of {30 + left} for this user's processes"
    monkeypatch.setattr(machine, "bound_by_process_limit", lambda: False)
    assert hosts.threads_check().state is State.OK


def test_threads_are_counted_as_the_kernel_counts_them():
    ready, go = threading.Barrier(4), threading.Event()

    def wait():
        ready.wait(10)
        go.wait(10)

    before = int(Path("/proc/self/status").read_text().split("Threads:")[1].split()[0])
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait(10)
    assert machine.threads_of_user() >= before + 3
    go.set()
    for thread in threads:
        thread.join(10)


def test_loopback_is_connected_to(monkeypatch):
    assert machine.connection_problem() is None

    def unreachable(self, address):
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    check = hosts.loopback_check()
    assert check.state is State.FAILURE
    assert check.found == "127.0.0.1 cannot be connected to (Network is unreachable)"
    assert check.remedy.startswith("bring the interface up: ip link set lo up")


def test_a_loopback_that_does_not_answer_is_told_in_time(monkeypatch):
    def silent(self, address):
        raise TimeoutError

    monkeypatch.setattr(socket.socket, "connect", silent)
    assert machine.connection_problem(0.5) == "does not answer within 0.5 s"


@pytest.mark.parametrize("name", ["absent", "file", "relative"])
def test_a_tmpdir_that_python_passes_over_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "file").write_text("")
    named = name if name == "relative" else str(tmp_path / name)
    monkeypatch.setenv("TMPDIR", named)
    check = hosts.temporary_folder_check()
    assert check.state is State.FAILURE
    assert check.found.startswith(f"TMPDIR={named} ")
    assert check.remedy.startswith(f"make it: mkdir -p {named}" if name == "absent" else "set TMPDIR to")
