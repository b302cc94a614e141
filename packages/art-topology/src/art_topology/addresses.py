"""What can be said about an address without resolving it."""

import ipaddress
import re

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_LOOPBACK_NAMES = frozenset(
    {"localhost", "localhost4", "localhost6", "localhost.localdomain", "ip6-localhost", "ip6-loopback"}
)


def canonical(address: str) -> str:
    """The form in which equal addresses are equal strings; what is no IP address is taken as a host name."""
    ip = _parse(address)
    return str(ip) if ip is not None else address.lower().removesuffix(".")


def malformation(address: str) -> str | None:
    """Why ``address`` is neither an IP address nor a host name, or None if it is one."""
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


def is_loopback(address: str) -> bool:
    """Whether only the host itself can reach it."""
    ip = _parse(address)
    if ip is not None:
        return ip.is_loopback
    name = canonical(address)
    return name in _LOOPBACK_NAMES or name.endswith(".localhost")


def is_wildcard(address: str) -> bool:
    """Whether it stands for all interfaces of a host: one can listen on it, not dial it."""
    ip = _parse(address)
    return ip is not None and ip.is_unspecified


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip
