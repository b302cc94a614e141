"""Addresses of streams: names and literals of IPv4 and IPv6, and the socket that listens on one of them."""

import asyncio
import ipaddress
import socket
from typing import Any

from art_dataplane.errors import TransportError

SocketAddress = tuple[Any, ...]
"""As :mod:`socket` has it: host and port, and flow and scope for IPv6."""

_BACKLOG = 128


def check_host(host: str) -> None:
    """Checks that ``host`` is one address.

    Raises:
        TransportError: it stands for all of this host's.
    """
    try:
        unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        unspecified = not host
    if unspecified:
        raise TransportError(
            f"host {host!r} stands for every address; give the one that other hosts connect to, or 127.0.0.1"
        )


async def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, SocketAddress]]:
    """The addresses of a host; only for a name does it ask anyone, in a thread of the event loop.

    Raises:
        TransportError: it has none.
    """
    try:
        try:
            ipaddress.ip_address(host)
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except ValueError:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise TransportError(f"host {host!r} has no address: {error.strerror}") from error
    return [(family, address) for family, _, _, _, address in found]


def bind(family: socket.AddressFamily, address: SocketAddress) -> socket.socket:
    """A socket that listens on this address and no other.

    Raises:
        TransportError: it stands for every address, is not one of this host, or the port is taken.
    """
    check_host(str(address[0]))
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise TransportError(
            f"cannot listen on {address[0]} port {address[1]}: {error.strerror}; give an address of this "
            "host and a free port"
        ) from error
    return listener
