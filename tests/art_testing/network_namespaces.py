"""Two hosts on one machine: network namespaces joined by a pair of virtual interfaces.

A namespace lives as long as the process that holds it, which ends with the one that started it. Needs root.
"""

import json
import subprocess
from types import TracebackType
from typing import Any, Self

ADDRESSES = (("192.0.2.1", "fd00:2::1"), ("192.0.2.2", "fd00:2::2"))
"""IPv4 and IPv6 of the first and of the second host; 192.0.2.0/24 is kept for documentation (RFC 5737)."""

INTERFACE = "veth0"
"""Name of the interface of each host to the other."""

_HOLD = "ip link set lo up && echo ready && exec cat"
_TIMEOUT_S = 30.0


class TwoHosts:
    """The namespaces; use ``with``."""

    def __enter__(self) -> Self:
        """Makes both and joins them."""
        self._holders = [
            subprocess.Popen(
                ["unshare", "--net", "sh", "-c", _HOLD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        try:
            for holder in self._holders:
                assert holder.stdout is not None
                assert holder.stdout.readline() == "ready\n", "no network namespace; are you root?"
            peer = ["peer", "name", INTERFACE, "netns", str(self._holders[1].pid)]
            self.ip(0, "link", "add", INTERFACE, "type", "veth", *peer)
            for host, (ipv4, ipv6) in enumerate(ADDRESSES):
                self.ip(host, "address", "add", f"{ipv4}/24", "dev", INTERFACE)
                self.ip(host, "address", "add", f"{ipv6}/64", "dev", INTERFACE, "nodad")
                self.ip(host, "link", "set", INTERFACE, "up")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends them; the kernel takes their interfaces with them."""
        self._end()

    def command(self, host: int, *command: str) -> list[str]:
        """The command line that runs ``command`` on host 0 or 1."""
        return ["nsenter", "--target", str(self._holders[host].pid), "--net", "--", *command]

    def ip(self, host: int, *arguments: str) -> str:
        """Runs ``ip`` there and returns what it printed."""
        done = subprocess.run(
            self.command(host, "ip", *arguments), capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def received_bytes(self, host: int) -> int:
        """Bytes that came over the interface to the other host, with headers, as the kernel counts them."""
        found: list[dict[str, Any]] = json.loads(self.ip(host, "-json", "-stats", "link", "show", INTERFACE))
        count: int = found[0]["stats64"]["rx"]["bytes"]
        return count

    def _end(self) -> None:
        for holder in self._holders:
            holder.communicate(timeout=_TIMEOUT_S)
