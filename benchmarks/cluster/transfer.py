"""Batches of 64x3x224x224 uint8 from another host: by our socket, and as plain Ray objects.

    sudo python benchmarks/cluster/transfer.py

Two network namespaces are the hosts, which share this machine's cores. Writes a section of
docs/offload.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests")]

from launches import rate, share  # noqa: E402

from calm import calmly  # noqa: E402 - stands above this folder
from jobs import DEADLINE_S  # noqa: E402 - of the tests
from network_hosts import NetworkHost, network_hosts  # noqa: E402 - likewise
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "offload.md"
HOSTS = ["trains", "helps"]
TO_TRY_FOR = 2_000.0


def main() -> None:
    """Measure both, in turns, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    ours, rays = [], []
    for number in range(options.rounds):
        ours.append(calmly(lambda _: job("wide.py", "--offload", "cpu")))
        rays.append(calmly(lambda _: job("ray_objects.py")))
        print(f"round {number + 1}: {rate(ours[-1]):.0f} by our socket, "
              f"{rate(rays[-1]):.0f} as Ray objects", flush=True)  # fmt: skip
    publish(ours, rays, dry=options.dry)


def job(script: str, *flags: str) -> list[dict[str, Any]]:
    """Run a script on the first of two hosts that have joined; return what it told."""
    with tempfile.TemporaryDirectory() as temporary, network_hosts(HOSTS) as hosts:
        folder = Path(temporary)
        (folder / script).write_text((HERE / "scripts" / script).read_text())
        command = ["cluster", "join", "--hosts", ",".join(HOSTS), "--profile", "off", *flags]
        groups = dict(zip(HOSTS, ["gpu", "cpu"], strict=True))
        launched = {
            host.name: host.start(folder, *command, "--group", groups[host.name], script)
            for host in hosts
        }
        code = launched[HOSTS[0]].wait(DEADLINE_S)
        launched[HOSTS[1]].wait(DEADLINE_S)
        return told(hosts[0], folder, code)


def told(host: NetworkHost, folder: Path, code: int) -> list[dict[str, Any]]:
    """Return the lines of JSON about epochs that the job has printed."""
    said = host.said(folder)
    if code:
        raise SystemExit(f"the job ended with {code}:\n{said}")
    lines = [line[line.index("{") :] for line in said.splitlines() if '{"epoch"' in line]
    return [json.loads(line) for line in lines]


def publish(
    ours: list[list[dict[str, Any]]], rays: list[list[dict[str, Any]]], *, dry: bool
) -> None:
    """Print the table, and write it to the page."""
    speeds = [[rate(run) for run in runs] for runs in (ours, rays)]
    cpu = [[share(run, "cpu_seconds") for run in runs] for runs in (ours, rays)]
    table = [
        "| | images/s from the other host | CPU of the training process, of one core |",
        "|---|---|---|",
        *(
            f"| {name} | {min(speed):.0f} to {max(speed):.0f} | "
            f"{min(spent):.1%} to {max(spent):.1%} |"
            for name, speed, spent in zip(
                ("our socket, into slots", "plain Ray objects"), speeds, cpu, strict=True
            )
        ),
    ]
    rows = [
        Row("our socket beside plain Ray objects",
            [one / other for one, other in zip(*speeds, strict=True)], ">= 1.0"),
        Row("images/s by our socket, in thousands", [each / 1000 for each in speeds[0]],
            f">= {TO_TRY_FOR / 1000}"),
        Row("CPU of the training process, of one core", cpu[0], "<= 0.15"),
    ]  # fmt: skip
    command = "sudo python benchmarks/cluster/transfer.py"
    write_section("Batches on their way", command, table, rows, page=PAGE, dry=dry)


if __name__ == "__main__":
    main()
