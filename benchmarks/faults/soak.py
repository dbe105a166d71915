"""Half an hour of training with random faults: nothing lost, nothing doubled, memory flat.

    python benchmarks/faults/soak.py --minutes 30 --seed 1

Two ranks or one train from an S3 server behind a proxy that makes faults, and sync checkpoints
there. Every few seconds a worker or a collector is killed, or a rank is frozen for a moment; every
few minutes a rank or the launcher is killed, and the job starts anew at another world size. At the
end all samples of all epochs are counted. Writes the section "Soak" of docs/faults.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "exactness"))

import psutil
from audit import Audit, audit
from kills import (
    Attempt,
    kill_as_planned,
    lines_of,
    log_of,
    make_data,
    of_kind,
    replacements_in,
    start,
    wait_for_lines,
)
from s3_server import S3Server, s3_server
from slow_proxy import Faults, slow_proxy

from headrace.data.storage import open_store
from report import ROOT, Row, command_line, write_section

PAGE = ROOT / "docs" / "faults.md"
FAULTS = {"busy": 0.02, "reset": 0.01, "short_body": 0.005, "cut_range": 0.005, "stall": 0.002}
BETWEEN_HARMS_S = (3.0, 15.0)
ATTEMPT_MINUTES = (4.0, 7.0)
SETTLING_S = 120.0  # until most pages of fixed size for records have been touched
FOR_EVER = 10**6
MARKS_MINUTES = (2, 5, 10, 15, 20, 25)
Memory = list[tuple[float, float, float]]
"""Each second: since the attempt's begin, s; a rank's memory, MB; without pages of files, MB."""


@dataclass(slots=True)
class Soak:
    """What has happened so far."""

    chance: random.Random
    attempt_s: tuple[float, float]  # the shortest and the longest attempt
    between_s: tuple[float, ...]  # the same of the time between two small harms
    harms: Counter[str] = field(default_factory=Counter)
    slopes: list[float] = field(default_factory=list)  # MB a minute of a rank
    own_slopes: list[float] = field(default_factory=list)  # without pages of files
    memory: Memory = field(default_factory=list)  # in the attempt that runs
    longest: Memory = field(default_factory=list)  # in the longest one


def main() -> None:
    """Train with faults for so long, audit, and write the section; exit 1 if it did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--attempt", type=float, nargs=2, default=ATTEMPT_MINUTES, metavar="MINUTES",
        help="the shortest and the longest attempt",
    )  # fmt: skip
    parser.add_argument(
        "--between", type=float, nargs=2, default=BETWEEN_HARMS_S, metavar="SECONDS",
        help="the shortest and the longest time between two small harms",
    )  # fmt: skip
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    shortest, longest = options.attempt
    soak = Soak(
        random.Random(options.seed),
        attempt_s=(shortest * 60, longest * 60),
        between_s=tuple(options.between),
    )
    with (
        tempfile.TemporaryDirectory() as temporary,
        s3_server(Path(temporary) / "s3") as server,
        slow_proxy(server.endpoint, faults=Faults(**FAULTS, stall_s=3.0, seed=options.seed)) as far,
    ):
        folder = Path(temporary) / "job"
        folder.mkdir()
        found = run(soak, replace(server, endpoint=far.endpoint), folder, options.minutes * 60)
        requests = far.counts()["requests"]
    publish(options, soak, found, requests)
    is_well = found.finished and not found.lost and not found.duplicated
    is_flat = not soak.slopes or statistics.median(soak.slopes) <= 1
    sys.exit(0 if is_well and is_flat else 1)


def publish(options: argparse.Namespace, soak: Soak, found: Audit, requests: int) -> None:
    """Write the section of docs/faults.md, or one of its own for attempts of another length."""
    harms = ", ".join(f"{count} times {what}" for what, count in sorted(soak.harms.items()))
    description = (
        f"{found.attempts} attempts; {found.counted:,} samples counted; {requests:,} requests to "
        f"object storage, 4.2 % of them with a fault; {harms}."
    )
    if curve := curve_of(soak.longest):
        description += f" Memory of a rank, MB (without pages of files): {curve} minutes."
    rows = [
        Row("samples lost", [float(len(found.lost))], "<= 0"),
        Row("samples duplicated", [float(len(found.duplicated))], "<= 0"),
        Row("memory of a rank, more MB a minute", soak.slopes, "<= 1"),
        Row("of it its own, without pages of files", soak.own_slopes, ""),
    ]
    is_usual = tuple(options.attempt) == ATTEMPT_MINUTES
    title = "Soak" if is_usual else f"Soak with attempts of {options.attempt[0]:g} minutes"
    write_section(title, command_line(), [description], rows, page=PAGE, dry=options.dry)


def run(soak: Soak, server: S3Server, folder: Path, seconds: float) -> Audit:
    """Run attempts until the time is over, then one that comes to an end; return the audit."""
    packed, keys = make_data(folder)
    data = in_bucket(packed, server)
    until_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until_s:
        world, kind = soak.chance.choice((1, 2)), soak.chance.choice(("rank", "launcher"))
        attempt = Attempt(number=number, world=world, kind=kind)
        launcher = start(server, folder, data, attempt, FOR_EVER)
        try:
            wait_for_lines(launcher, folder, attempt, 0)
            longest_s = min(until_s, time.monotonic() + soak.chance.uniform(*soak.attempt_s))
            harm_for_a_while(soak, psutil.Process(launcher.pid), longest_s)
            kill_as_planned(launcher, folder, replace(attempt, steps=lines_of(folder, attempt)))
        finally:
            launcher.kill()
        soak.harms[f"kill -9 of a {attempt.kind}"] += 1
        number += 1
    epochs = last_epoch(folder) + 2
    last = Attempt(number=number, world=2)
    code = start(server, folder, data, last, epochs).wait(timeout=1200)
    if code:
        sys.exit(f"the last attempt ended with {code}:\n{log_of(folder, last)}")
    return audit(folder, keys, epochs, replacements_in(folder))


def in_bucket(packed: str, server: S3Server) -> str:
    """Copy a packed dataset, damaged as it is, to object storage; return its URL."""
    os.environ.update(server.environment())
    url = f"s3://{server.bucket}/soak-data"
    store = open_store(url)
    for file in sorted(Path(packed).rglob("*")):
        if file.is_file():
            store.put(file.relative_to(packed).as_posix(), file.read_bytes())
    return url


def harm_for_a_while(soak: Soak, launcher: psutil.Process, until_s: float) -> None:
    """Do small harm that a job survives, and watch the memory of its ranks."""
    began_s = time.monotonic()
    soak.memory.clear()
    next_s = began_s + soak.chance.uniform(*soak.between_s)
    while (now_s := time.monotonic()) < until_s:
        if now_s > began_s + SETTLING_S:
            soak.memory.append((now_s - began_s, *memory_of(launcher)))
        if now_s > next_s:
            harm(soak, launcher)
            next_s = now_s + soak.chance.uniform(*soak.between_s)
        time.sleep(1.0)
    if len(soak.memory) > 30:
        soak.slopes.append(slope_of(soak.memory, 1))
        soak.own_slopes.append(slope_of(soak.memory, 2))
        soak.longest = max(soak.longest, list(soak.memory), key=len)


def curve_of(memory: Memory) -> str:
    """Return what a rank had after so many minutes."""
    found = []
    for minutes in MARKS_MINUTES:
        near = [(size, own) for at_s, size, own in memory if 0 <= at_s - 60 * minutes < 10]
        if near:
            size, own = min(near)
            found.append(f"{size:.2f} ({own:.2f}) after {minutes}")
    return ", ".join(found)


def slope_of(memory: Memory, column: int) -> float:
    """Return how a column grows, MB a minute."""
    # The least of ten seconds: a save needs more for a moment.
    tens = [memory[at : at + 10] for at in range(0, len(memory), 10)]
    least = [min(each, key=itemgetter(column)) for each in tens]
    times, sizes = [each[0] for each in least], [each[column] for each in least]
    return 60 * statistics.linear_regression(times, sizes).slope


def harm(soak: Soak, launcher: psutil.Process) -> None:
    """Kill a worker or a collector, or freeze a rank for a moment."""
    what = soak.chance.choice(("worker", "collector", "freeze"))
    kind = "rank" if what == "freeze" else what
    found = of_kind(launcher.children(recursive=True), kind)
    if not found:
        return
    process = soak.chance.choice(found)
    with suppress(psutil.NoSuchProcess):
        if what == "freeze":
            process.suspend()
            time.sleep(soak.chance.uniform(0.2, 3.0))  # the harm itself
            process.resume()
        else:
            process.kill()
        soak.harms["a rank frozen" if what == "freeze" else f"kill -9 of a {what}"] += 1


def memory_of(launcher: psutil.Process) -> tuple[float, float]:
    """Return the mean resident memory of the job's ranks, and of it what is no file's, MB."""
    found = []
    for rank in of_kind(launcher.children(recursive=True), "rank"):
        with suppress(psutil.NoSuchProcess):
            found.append(rank.memory_info())
    if not found:
        return 0.0, 0.0
    own = statistics.mean(info.rss - info.shared for info in found) / 1e6
    return statistics.mean(info.rss for info in found) / 1e6, own


def last_epoch(folder: Path) -> int:
    """Return the highest number of an epoch in the ledgers."""
    entries = (
        json.loads(line)
        for path in folder.glob("ledger-*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    )
    return max(entry.get("epoch", 0) for entry in entries)


if __name__ == "__main__":
    main()
