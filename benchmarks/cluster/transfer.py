"""Batches of 64x3x224x224 uint8 from another host: by our socket, and as Ray objects.

Objects of Ray's store come in two ways: the training process gets them itself, or a proxy beside
it copies them into slots, so that training pays no more for them than for ours.

    sudo python benchmarks/cluster/transfer.py

Two network namespaces are the hosts, which share this machine's cores. Writes a section of
docs/offload.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests")]

from launches import rate, share  # noqa: E402

from cpu_steal import run_undisturbed  # noqa: E402 - stands above this folder
from jobs import DEADLINE_S  # noqa: E402 - of the tests
from network_hosts import NetworkHost, network_hosts  # noqa: E402 - as above
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "offload.md"
HOSTS = ["trains", "helps"]
TO_TRY_FOR = 2_000.0


@dataclass(frozen=True, slots=True)
class Way:
    """How batches come.

    Attributes:
        name: As the table has it.
        script: With its arguments.
        flags: Of the job.
    """

    name: str
    script: tuple[str, ...]
    flags: tuple[str, ...] = ()


OURS = Way("Headrace's protocol, into slots", ("wide.py",), ("--offload", "cpu"))
PLAIN = Way("plain Ray objects", ("ray_objects.py",))
STORE = Way("Ray objects, through a proxy into slots", ("ray_objects.py", "--slots"))
WAYS = [OURS, PLAIN, STORE]


def main() -> None:
    """Measure both, in turns, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    found: dict[Way, list[list[dict[str, Any]]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way, runs in found.items():
            runs.append(run_undisturbed(lambda _, way=way: job(way)))  # type: ignore[misc]
            print(f"round {number + 1}: {rate(runs[-1]):.0f} by {way.name}", flush=True)
    publish(found, dry=options.dry)


def job(way: Way) -> list[dict[str, Any]]:
    """Run its script on the first of two hosts that have joined; return what it printed."""
    with tempfile.TemporaryDirectory() as temporary, network_hosts(HOSTS) as hosts:
        folder = Path(temporary)
        (folder / way.script[0]).write_text((HERE / "scripts" / way.script[0]).read_text())
        command = ["cluster", "join", "--hosts", ",".join(HOSTS), "--profile", "off", *way.flags]
        groups = dict(zip(HOSTS, ["gpu", "cpu"], strict=True))
        launched = {
            host.name: host.start(folder, *command, "--group", groups[host.name], *way.script)
            for host in hosts
        }
        code = launched[HOSTS[0]].wait(DEADLINE_S)
        launched[HOSTS[1]].wait(DEADLINE_S)
        return printed_epochs(hosts[0], folder, code)


def printed_epochs(host: NetworkHost, folder: Path, code: int) -> list[dict[str, Any]]:
    """Return the lines of JSON about epochs that the job has printed."""
    output = host.output(folder)
    if code:
        raise SystemExit(f"the job ended with {code}:\n{output}")
    lines = [line[line.index("{") :] for line in output.splitlines() if '{"epoch"' in line]
    return [json.loads(line) for line in lines]


def publish(found: dict[Way, list[list[dict[str, Any]]]], *, dry: bool) -> None:
    """Print the table, and write it to the page."""
    speeds = {way: [rate(run) for run in runs] for way, runs in found.items()}
    cpu = {way: [share(run, "cpu_seconds") for run in runs] for way, runs in found.items()}
    table = [
        "| | images/s from the other host | CPU of the training process, share of a core |",
        "|---|---|---|",
        *(
            f"| {way.name} | {min(speeds[way]):.0f} to {max(speeds[way]):.0f} | "
            f"{min(cpu[way]):.1%} to {max(cpu[way]):.1%} |"
            for way in WAYS
        ),
    ]

    def ratios(way: Way, other: Way) -> list[float]:
        return [one / two for one, two in zip(speeds[way], speeds[other], strict=True)]

    rows = [
        Row("Headrace's protocol / plain Ray objects", ratios(OURS, PLAIN), ">= 1.0"),
        Row("... Ray objects through a proxy / plain Ray objects", ratios(STORE, PLAIN), ""),
        Row("Headrace's protocol, thousand images/s", [each / 1000 for each in speeds[OURS]],
            f">= {TO_TRY_FOR / 1000}"),
        Row("CPU of the training process, share of a core", cpu[OURS], "<= 0.15"),
    ]  # fmt: skip
    command = "sudo python benchmarks/cluster/transfer.py"
    write_section("Transfer of batches", command, table, rows, page=PAGE, dry=dry)


if __name__ == "__main__":
    main()
