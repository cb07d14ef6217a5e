"""The network from which a request comes: what limits of clients count by."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

THIS_MACHINE = "this machine"


def source_network(address: str) -> str:
    """Return the network of a client's address: this machine, or what one client commonly has for itself.

    All loopback addresses are this machine. An IPv6 client can choose among the addresses of its /64.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return THIS_MACHINE
    return str(found) if found.version == 4 else str(ip_network(f"{found}/64", strict=False))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at `host`."""
    return host == "localhost" or source_network(host) == THIS_MACHINE
