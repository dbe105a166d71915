"""Addresses and identity of hosts: names, IPv4 addresses, free ports, whether two are the same.

A host's identity across processes is the kernel's boot id, its process ids and a marker file.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.core.boot_id import host_id
from headrace.core.errors import UsageError

_MARKER_NAME = ".headrace-mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMarker:
    """A marker that other processes find if they share this host and its file system.

    Containers that have the file, too, are other hosts: a process id of one means nothing in
    another.
    """

    host: str  # see `host_id`
    path: str
    content: str  # random


@contextmanager
def host_marker(folder: Path) -> Iterator[HostMarker]:
    """Write a marker file in a folder for the block; raises OSError where that is not writable."""
    path = folder / _MARKER_NAME
    content = secrets.token_hex(8)
    path.write_text(content)
    try:
        yield HostMarker(host=host_id(), path=str(path), content=content)
    finally:
        path.unlink(missing_ok=True)


def is_same_host(marker: HostMarker) -> bool:
    """Return whether this process shares the marker's host and file system."""
    try:
        return marker.host == host_id() and Path(marker.path).read_text() == marker.content
    except OSError:
        return False


def addresses_of(name: str) -> list[str]:
    """Return the IPv4 addresses that a host's name resolves to on this host; empty if unknown."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(entry[4][0]) for entry in found})


def free_port(address: str) -> int:
    """Return a port that is free at an address of this host."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def find_this_host(names: Sequence[str]) -> str | None:
    """Return the one of some names or addresses that is this host; None if none is.

    Raises UsageError where more than one resolves to this host.
    """
    here = [name for name in names if any(map(_is_own_address, addresses_of(name)))]
    if len(here) > 1:
        raise UsageError(
            f"{' and '.join(here)} lead to this host alike: have each host of --hosts lead to one "
            "host, whichever host asks."
        )
    return here[0] if here else None


def source_address(other: str) -> str | None:
    """Return this host's address on the route to another address; None without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))  # sends nothing; any port would do
        except OSError:
            return None
        return str(probe.getsockname()[0])


def head_address(head: str, hosts: Sequence[str]) -> str:
    """Return the address by which other hosts reach this one, the head.

    `hosts` are the names of all hosts, empty if they are not known beforehand. Raises UsageError
    where the head's name resolves to loopback addresses alone, as `127.0.1.1` in /etc/hosts.
    """
    own = [address for address in addresses_of(head) if _is_own_address(address)]
    others = [address for host in hosts if host != head for address in addresses_of(host)]
    # On Debian a host's own name resolves to its loopback address on that host.
    for address in (*own, *map(source_address, others)):
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            return address
    if own and len(hosts) == 1:
        return own[0]
    raise UsageError(
        f"The head {head} leads to {', '.join(addresses_of(head)) or 'no address'} on the head "
        "itself, where no other host reaches it. Name it by the address that other hosts reach: "
        "--head ADDRESS."
    )


def _is_own_address(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True
