"""What an auxiliary group lacks: hosts that are not there, and hosts that other jobs keep busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches

from headrace.cluster.connection import Host
from headrace.contracts.groups import LABEL, Group

_STANDS_S = 15.0  # hosts come and go as a job starts


class Standing:
    """Tells each line once it has been true for a while, and again if it was not meanwhile.

    Args:
        tell: Takes the lines.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._since_s: dict[str, float] = {}
        self._told: set[str] = set()

    def are(self, lines: Sequence[str], now_s: float) -> None:
        """Take the lines that are true now; to be called often."""
        self._since_s = {line: self._since_s.get(line, now_s) for line in lines}
        self._told &= self._since_s.keys()
        for line, since_s in self._since_s.items():
            if now_s - since_s >= _STANDS_S and line not in self._told:
                self._told.add(line)
                self._tell(line)


def lacks(
    name: str, declared: Group | None, training: str, hosts: Sequence[Host],
    busy: Collection[Host],
) -> list[str]:  # fmt: skip
    """Return what there is to tell of an auxiliary group, a line each.

    Args:
        name: The group's.
        declared: What the command line says of it, where it does.
        training: The group that trains.
        hosts: Those of the cluster.
        busy: Those of the group whose cores others have.
    """
    there = sum(host.group == name for host in hosts)
    lines = []
    if not there:
        meant = _meant(name, training, hosts)
        lines.append(
            f"headrace: group {name} has no host, and training goes on without; the cluster has "
            f"{_groups(hosts)}.{meant} Hosts that come later are used: `ray start --labels "
            f"{LABEL}={name}`\n"
        )
    elif declared is not None and there < declared.hosts:
        lines.append(
            f"headrace: group {name} has {there} of {declared.hosts} hosts; training goes on "
            "without the others, and they are used once they come\n"
        )
    if busy:
        told = ", ".join(sorted(host.name for host in busy))
        lines.append(
            f"headrace: group {name}: busy with other jobs: {told}; training goes on without, and "
            "a host makes batches once all of its cores are free\n"
        )
    return lines


def _meant(name: str, training: str, hosts: Sequence[Host]) -> str:
    """Return whether another group may be meant, in words."""
    groups = {host.group.casefold(): host.group for host in hosts if host.group is not None}
    groups.pop(training.casefold(), None)
    near = get_close_matches(name.casefold(), groups, n=1)
    return f" Did you mean --offload {groups[near[0]]}?" if near else ""


def _groups(hosts: Sequence[Host]) -> str:
    counted = Counter(host.group for host in hosts)
    alone = counted.pop(None, 0)
    told = [f"{count} of group {group}" for group, count in sorted(counted.items())]
    return ", ".join([*told, *([f"{alone} of no group"] if alone else [])])
