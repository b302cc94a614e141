"""What can be said about an address without resolving it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import ipaddress

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_PLAIN_IPV4 = re.compile(
    r"(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})"
)
_LOOPBACK_NAMES = frozenset(
    {"localhost", "localhost4", "localhost6", "localhost.localdomain", "ip6-localhost", "ip6-loopback"}
)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address, read once.

    Args:
        text: As it was written.
        canonical: The form in which equal addresses are equal strings; what is no IP address is taken as a
            host name.
        malformation: Why it is neither an IP address nor a host name; None if it is one.
        is_loopback: Whether only the host itself can reach it.
        is_wildcard: Whether it stands for all interfaces of a host: one can listen on it, not dial it.
        no_host: What it stands for when it does not stand for one host everywhere, such as "a multicast
            group".
    """

    text: str
    canonical: str
    malformation: str | None = None
    is_loopback: bool = False
    is_wildcard: bool = False
    no_host: str | None = None


def read_address(text: str) -> Address:
    """Everything that can be said about an address."""
    if (plain := _PLAIN_IPV4.fullmatch(text)) is not None:
        octets = [int(octet) for octet in plain.groups()]
        # What needs no second look: most of the addresses of a large cluster.
        if max(octets) < 256 and 0 < octets[0] < 224 and octets[0] != 127 and octets[:2] != [169, 254]:
            return Address(text=text, canonical=text)
    ip = _parse(text)
    if ip is None:
        name = text.lower().removesuffix(".")
        return Address(
            text=text,
            canonical=name,
            malformation=_malformation(text),
            is_loopback=name in _LOOPBACK_NAMES or name.endswith(".localhost"),
        )
    return Address(
        text=text,
        canonical=str(ip),
        is_loopback=ip.is_loopback,
        is_wildcard=ip.is_unspecified,
        no_host=_no_host(ip),
    )


def is_loopback(address: str) -> bool:
    """Whether only the host itself can reach it."""
    return read_address(address).is_loopback


def mended(address: str) -> str | None:
    """What was most likely meant by a malformed address: without scheme, path, port, brackets and space; None
    if that is no address either."""
    text = "".join(address.split())
    text = text.rsplit("://", 1)[-1].split("/", 1)[0]
    if text.startswith("["):
        text = text[1:].split("]", 1)[0]
    elif text.count(":") == 1:
        text = text.split(":", 1)[0]
    text = text.strip("-")
    return text if text and _malformation(text) is None else None


def _malformation(address: str) -> str | None:
    if _parse(address) is not None:
        return None
    if any(character.isspace() for character in address):
        return "has white space in it"
    if "/" in address:
        return "is a URL or a network, not an address"
    if address.startswith("[") or address.endswith("]"):
        return "is in brackets, which only belong into a URL"
    if ":" in address:
        return "is not an IPv6 address, and a port is given apart from the address"
    if len(address) > 253 or not _HOST_NAME.fullmatch(address):
        return "is neither an IP address nor a host name"
    if address.removesuffix(".").rsplit(".", 1)[-1].isdigit():
        return "is not a complete IPv4 address"
    return None


def _no_host(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str | None:
    import ipaddress

    if ip.is_multicast:
        return "a multicast group"
    if str(ip) == "255.255.255.255":
        return "broadcast"
    if ip.is_link_local:
        return "link-local: another host on each interface"
    if isinstance(ip, ipaddress.IPv6Address) and ip.scope_id is not None:
        return f"scoped to an interface of one host ({ip.scope_id})"
    if isinstance(ip, ipaddress.IPv4Address) and (ip.is_reserved or 0 < int(ip) < 1 << 24):
        return "reserved"
    return None


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    import ipaddress

    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip
