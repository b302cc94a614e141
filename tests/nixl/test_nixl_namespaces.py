"""Between two network namespaces, joined by one cable, the bytes cross that cable; so do the errors."""

import asyncio
import hashlib
import json
import subprocess
import uuid
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from art_dataplane import encode

MIB = 1 << 20


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@dataclass
class Cable:
    """Two namespaces, each with the interface ``veth0`` at its end of one cable and no other way out."""

    left: str
    right: str

    def bytes_received(self, namespace: str) -> int:
        (link,) = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", "veth0"))
        return link["stats64"]["rx"]["bytes"]

    def listening(self, namespace: str) -> list[str]:
        lines = run("ss", "-N", namespace, "-Htln").splitlines()
        return [line.split()[3] for line in lines]

    def set_link(self, state: str) -> None:
        run("ip", "-n", self.left, "link", "set", "veth0", state)


@pytest.fixture
def cable() -> Iterator[Cable]:
    cable = Cable(*(f"art-nixl-{side}-{uuid.uuid4().hex[:8]}" for side in "lr"))
    made: list[str] = []
    try:
        for namespace in (cable.left, cable.right):
            run("ip", "netns", "add", namespace)
            made.append(namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")  # an agent first connects to itself
        run("ip", "link", "add", "veth0", "netns", cable.left, "type", "veth",
            "peer", "name", "veth0", "netns", cable.right)  # fmt: skip
        for namespace, address in ((cable.left, "198.18.7.1/30"), (cable.right, "198.18.7.2/30")):
            run("ip", "-n", namespace, "address", "add", address, "dev", "veth0")
            run("ip", "-n", namespace, "link", "set", "veth0", "up")
        yield cable
    finally:
        for namespace in made:
            run("ip", "netns", "delete", namespace)


async def test_bytes_cross_the_cable_and_agents_listen_at_its_ends_only(cable, start_peer):
    owner = start_peer("tcp", "veth0", cable.left)
    reader = start_peer("tcp", "veth0", cable.right)
    size = 64 * MIB
    for seed in (1, 2):
        location = await owner.offer(size, seed)
        before = cable.bytes_received(cable.right)
        received = await reader.ask("receive", location=b64encode(encode(location)).decode(), deadline_s=60.0)
        crossed = cable.bytes_received(cable.right) - before
        expected = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
        assert received["digest"] == hashlib.sha256(expected.data).hexdigest()
        assert size <= crossed < 1.1 * size, f"{crossed} bytes crossed the cable for {size}"
    for namespace, address in ((cable.left, "198.18.7.1:"), (cable.right, "198.18.7.2:")):
        listening = cable.listening(namespace)
        assert listening
        assert all(one.startswith(address) for one in listening), listening


async def test_a_cable_that_is_cut_is_an_error_in_time_and_one_that_is_mended_is_used_again(
    cable, start_peer, until
):
    owner = start_peer("tcp", "veth0", cable.left)
    reader = start_peer("tcp", "veth0", cable.right)
    location = b64encode(encode(await owner.offer(16 * MIB, 1, reads=3))).decode()
    first = await reader.ask("receive", location=location, deadline_s=60.0)
    cable.set_link("down")
    began = asyncio.get_running_loop().time()
    with pytest.raises(RuntimeError, match="DeadlineError: 16777216 bytes of agent"):
        await reader.ask("receive", location=location, deadline_s=1.0)
    assert asyncio.get_running_loop().time() - began < 5.0

    async def is_free():
        stats = await reader.ask("stats")
        return stats["reads"] == stats["quarantined_bytes"] == 0

    await until(is_free)
    cable.set_link("up")
    again = await reader.ask("receive", location=location, deadline_s=60.0)
    assert again["digest"] == first["digest"]
