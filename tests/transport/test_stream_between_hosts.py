"""Streams between two network namespaces, over interfaces that count what passes and can be cut."""

import hashlib
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from art_testing.network_namespaces import ADDRESSES, INTERFACE, TwoHosts

from art_dataplane import list_segments

PEER = Path(__file__).with_name("peer.py")
SIZE = 32 << 20
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    with TwoHosts() as hosts:
        yield hosts


@pytest.fixture
def run_id() -> Iterator[str]:
    run_id = f"hosts-{uuid.uuid4().hex[:8]}"
    yield run_id
    assert list_segments(run_id) == ()


@pytest.fixture
def start(hosts: TwoHosts, run_id: str) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(host: int, *arguments: str) -> "subprocess.Popen[str]":
        role, *rest = arguments
        command = hosts.command(host, sys.executable, str(PEER), role, run_id, *rest)
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def say(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"the peer ended with {process.wait(10)}"
    return line


def finish(process: "subprocess.Popen[str]") -> dict:
    return json.loads(process.communicate(timeout=60)[0])


@pytest.mark.parametrize("mac", ["aes-gmac", "hmac-sha256"])
@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_four_users_of_a_host_cost_one_passage_of_the_bytes(hosts, start, family, mac):
    owner = start(0, "owner", ADDRESSES[0][family], str(SIZE), mac)
    reader = start(1, "reader", "4", "30")
    location = hear(owner)
    assert json.loads(location)["host"] == ADDRESSES[0][family]
    before = hosts.received_bytes(1)
    say(reader, location)
    assert hear(reader) == "admitted"
    say(reader, "go on")
    found = finish(reader)
    passed = hosts.received_bytes(1) - before
    data = bytes(range(251)) * (SIZE // 251) + bytes(SIZE % 251)
    assert found["digest"] == hashlib.sha256(data).hexdigest()
    assert (found["names"], found["kept"]) == (1, 0)
    assert SIZE < passed < 1.1 * SIZE  # once, with the headers of the packets
    counted = finish(owner)
    assert (counted["completed_reads"], counted["failed_reads"], counted["offers"]) == (1, 0, 0)


def test_a_cable_that_is_cut_costs_no_more_than_the_deadline(hosts, start):
    owner = start(0, "owner", ADDRESSES[0][0], str(SIZE), "hmac-sha256")
    reader = start(1, "reader", "2", "2")
    say(reader, hear(owner))
    assert hear(reader) == "admitted"
    hosts.ip(0, "link", "set", INTERFACE, "down")
    try:
        say(reader, "go on")
        found = finish(reader)
        assert found["errors"] == ["DeadlineError"] * 2
        assert 2.0 <= found["seconds"] < 10.0
        assert found["kept"] == 0
        counted = finish(owner)  # its close ends the read that hangs
        assert (counted["completed_reads"], counted["sending"]) == (0, 1)
    finally:
        hosts.ip(0, "link", "set", INTERFACE, "up")


def test_a_host_that_does_not_answer_is_a_deadline(hosts, start):
    owner = start(0, "owner", ADDRESSES[0][0], "1000", "hmac-sha256")
    reader = start(1, "reader", "1", "1.5")
    location = json.loads(hear(owner))
    say(reader, json.dumps(location | {"host": "192.0.2.77"}))
    found = finish(reader)
    assert found["errors"] in (
        ["DeadlineError"],
        ["TransportError"],
    )  # the kernel may say first that it is away
    assert found["seconds"] < 10.0
    assert finish(owner)["offers"] == 1


def test_nobody_else_reaches_the_port(hosts, start):
    """Only the given address is listened on, so not even the owner's host has the port elsewhere."""
    owner = start(0, "owner", ADDRESSES[0][0], "1000", "hmac-sha256")
    port = json.loads(hear(owner))["port"]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 10)"
    command = hosts.command(0, sys.executable, "-c", code)
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert "ConnectionRefusedError" in done.stderr
    assert finish(owner)["pending"] == 0
