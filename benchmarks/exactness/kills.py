"""Exactness: kill -9 of random processes at random instants, restarts at other world sizes.

    python benchmarks/exactness/kills.py --seeds 20 --kills 9
    python benchmarks/exactness/kills.py --seeds 20 --kills 9 --go-on  # after an interruption

Every attempt but the last of a seed is ended by a kill of ours, or the benchmark fails. World sizes
go round through 1, 2, 4, 2, 1, 4, so nine kills contain every change up and down. Checkpoints are
synced to a real S3 server; workers change from attempt to attempt. Every third attempt is a job on
an emulated Ray cluster, whose auxiliary host makes batches too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import cv2
import numpy as np
import psutil
from audit import Audit, audit
from s3_server import S3Server, s3_server

import headrace
from case_results import CaseResults
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from report import Row, command_line, write_section

HERE = Path(__file__).parent
SAMPLES, EPOCHS = 203, 40  # 203 is divided by no batch size in use: every epoch has a tail
WORLDS = (1, 2, 4, 2, 1, 4)
NO_PROGRESS_S = 180.0  # then a job hangs; a start takes most of it on a full machine
COMMANDS = {
    "launcher": "headrace.cli.main run",
    "rank": "exactness/train.py",
    "sync": "headrace.jobs.sync.sync_process",
    "collector": "headrace.observe.probe.collector_process",
    "proxy": "headrace.offload.proxy",
    "server": "headrace.offload.server",
}
"""What the command line of a process of each kind contains; a worker is below a rank."""
ON_ONE_HOST = ("rank", "worker", "sync", "launcher", "collector")
ON_A_CLUSTER = ("server", "proxy", "launcher", "rank")
SURVIVED = {"worker", "collector", "proxy", "server"}
"""Kinds whose death does not end the job: it trains on, and its launcher is killed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the job and the kill that ends it.

    Attributes:
        number: Which one of its seed.
        world: How many ranks.
        on_cluster: Whether it runs on an emulated Ray cluster with an auxiliary host.
        kind: Of the process that is killed; "": none, the job runs to its end.
        steps: How many lines the ledgers have before.
        wait_s: The random instant after them.
        workers: Of each rank's loader.
    """

    number: int
    world: int
    on_cluster: bool = False
    kind: str = ""
    steps: int = 0
    wait_s: float = 0.0
    workers: int = 1


class NotKilledError(Exception):
    """An attempt ended, or hung, before its kill: what is measured was not done."""


def main() -> None:
    """Run the benchmark, write the section "Exactness", exit 1 if a sample was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=9, help="of each seed")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--one-host", action="store_true", help="no attempt on a Ray cluster")
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    parser.add_argument("--go-on", action="store_true", help="seeds with a result are not repeated")
    options = parser.parse_args()
    results = CaseResults("exactness", go_on=options.go_on)
    found: list[Audit] = []
    kinds: Counter[str] = Counter()
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        plan = list(schedule(options.kills, seed, on_cluster=not options.one_host))
        case = f"{seed}, {options.kills} kills, {options.epochs} epochs, {options.one_host=}"
        if results.get(case) is None:
            with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder) / "s3") as server:
                results.add(case, asdict(run(server, Path(folder), plan, options.epochs)))
        found.append(Audit(**results.get(case)))
        kinds.update(attempt.kind for attempt in plan)
        last = found[-1]
        print(f"seed {seed}: {last.counted} samples, {len(last.lost)} lost, "
              f"{len(last.duplicated)} duplicated", flush=True)  # fmt: skip
    is_exact = all(each.finished and not each.lost and not each.duplicated for each in found)
    if not options.dry:
        publish(options, found, kinds)
    sys.exit(0 if is_exact else 1)


def publish(options: argparse.Namespace, found: list[Audit], kinds: Counter[str]) -> None:
    """Write the section of docs/benchmarks.md."""
    killed = ", ".join(f"{count} of a {kind}" for kind, count in sorted(kinds.items()))
    description = (
        f"{options.seeds} seeds, {sum(each.attempts for each in found)} attempts at world sizes "
        f"1, 2 and 4, each changed to each; all but the last of a seed ended by a kill -9 of ours: "
        f"{killed}; {options.epochs} epochs of {SAMPLES} samples with a checkpoint every 4 steps, "
        f"synced to an S3 server; {sum(each.counted for each in found):,} samples counted, "
        f"{sum(each.replaced for each in found)} of them replacements for a damaged one. Last "
        f"attempts that finished: {sum(each.finished for each in found)} of {len(found)}."
    )
    rows = [
        Row("samples lost", [float(len(each.lost)) for each in found], "<= 0"),
        Row("samples duplicated", [float(len(each.duplicated)) for each in found], "<= 0"),
    ]
    write_section("Exactness", command_line(), [description], rows)


def schedule(kills: int, seed: int, *, on_cluster: bool) -> Iterator[Attempt]:
    """Yield a seed's attempts that are killed: world sizes in turn, kinds shuffled."""
    chance = random.Random(seed)
    begin = chance.randrange(len(WORLDS))
    kinds = {True: _in_turn(ON_A_CLUSTER, chance), False: _in_turn(ON_ONE_HOST, chance)}
    for number in range(kills):
        is_cluster = on_cluster and number % 3 == 2
        kind = next(kinds[is_cluster])
        yield Attempt(
            number=number,
            world=WORLDS[(begin + number) % len(WORLDS)],
            on_cluster=is_cluster,
            kind=kind,
            steps=chance.randrange(1, 25),
            wait_s=chance.uniform(0, 0.2),
            workers=chance.randint(1 if kind == "worker" or is_cluster else 0, 2),
        )


def _in_turn(kinds: tuple[str, ...], chance: random.Random) -> Iterator[str]:
    """Yield the kinds for ever, each round of them in another order."""
    while True:
        yield from chance.sample(kinds, len(kinds))


def run(server: S3Server, folder: Path, plan: list[Attempt], epochs: int) -> Audit:
    """Kill a training as planned, let it finish on two ranks, and audit its ledgers.

    Raises NotKilledError where an attempt ended otherwise than by its kill.
    """
    data, keys = make_data(folder)
    for attempt in plan:
        launcher = start(server, folder, data, attempt, epochs)
        try:
            kill_as_planned(launcher, folder, attempt)
        finally:
            launcher.kill()
        print(f"attempt {attempt.number}: world {attempt.world}, killed a {attempt.kind}",
              file=sys.stderr, flush=True)  # fmt: skip
    last = Attempt(number=len(plan) and plan[-1].number + 1, world=2)
    code = start(server, folder, data, last, epochs).wait(timeout=1200)
    if code:
        raise NotKilledError(f"The last attempt ended with {code}:\n{log_of(folder, last)}")
    return audit(folder, keys, epochs, replacements_in(folder))


def replacements_in(folder: Path) -> dict[str, str]:
    """Return each damaged sample's key and that of the one in its place."""
    return {
        record["key"]: record["replacement_key"]
        for file in folder.rglob("quarantine.jsonl")
        for record in map(json.loads, file.read_text().splitlines())
    }


def make_data(folder: Path) -> tuple[str, list[str]]:
    """Pack small images, damage one of them; return the URL and all keys."""
    for i in range(SAMPLES):
        path = folder / "images" / f"class_{i % 3}" / f"{i:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((16, 16, 3), i, np.uint8))
    url = str(folder / "packed")
    pack(str(folder / "images"), url, PackOptions(shard_bytes=30_000))
    index = headrace.ShardDataset(url).index
    bad = index.locate(SAMPLES // 2)
    image = next(member for member in bad.members if member.extension == "jpg")
    with (Path(url) / bad.path).open("r+b") as shard:
        shard.seek(image.offset + image.size_bytes // 2)
        shard.write(b"damage")
    return url, [index.locate(sample).key for sample in range(SAMPLES)]


def start(
    server: S3Server, folder: Path, data: str, attempt: Attempt, epochs: int, run_folder: str = ""
) -> subprocess.Popen[bytes]:
    """Start one attempt through `headrace run`; by default in a run folder of its own."""
    cluster = ["--engine", "ray", "--group", "gpu=1:cpus=2", "--group", "cpu=1:cpus=2"]
    hosts = [*cluster, "--offload", "cpu"] if attempt.on_cluster else []
    checkpoints = f"s3://{server.bucket}/{folder.parent.name}-{folder.name}"
    ranks = [f"--nproc-per-node={attempt.world}"] if attempt.world > 1 or hosts else []
    with log_file(folder, attempt).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "run", *hosts, *ranks, "--run-dir",
             str(folder / (run_folder or f"run-{attempt.number:03d}")), "--checkpoint-uri",
             checkpoints, str(HERE / "train.py"), "--data", data, "--folder", str(folder),
             "--attempt", str(attempt.number), "--epochs", str(epochs),
             "--workers", str(attempt.workers)],
            env={**os.environ, **server.environment(), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def log_file(folder: Path, attempt: Attempt) -> Path:
    """Return where the attempt's output goes."""
    return folder / f"log-{attempt.number:03d}.txt"


LONGEST_LOG = 4000  # characters of the end


def log_of(folder: Path, attempt: Attempt) -> str:
    """Return the end of the attempt's output."""
    return log_file(folder, attempt).read_text(errors="replace")[-LONGEST_LOG:]


def kill_as_planned(launcher: subprocess.Popen[bytes], folder: Path, attempt: Attempt) -> None:
    """Kill the process that is planned; where training survives that, the launcher after it."""
    wait_for_lines(launcher, folder, attempt, attempt.steps)
    time.sleep(attempt.wait_s)  # the random instant itself
    killed, processes = victim(launcher, folder, attempt)
    killed.kill()
    if attempt.kind in SURVIVED:
        wait_for_lines(launcher, folder, attempt, lines_of(folder, attempt) + 6)
        processes += psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
    elif attempt.kind == "sync":  # files that cannot be copied end a job with an error, at its end
        launcher.kill()
    launcher.wait(timeout=120)
    _, left = psutil.wait_procs(processes, timeout=60)
    if left:
        raise NotKilledError(f"{attempt}: left running: {left}\n{log_of(folder, attempt)}")


def victim(
    launcher: subprocess.Popen[bytes], folder: Path, attempt: Attempt
) -> tuple[psutil.Process, list[psutil.Process]]:
    """Return the process of the attempt's kind, once there is one, and all below the launcher.

    A rank's first line is of its restored step: its workers may not have been started by then.
    """
    until_s = time.monotonic() + NO_PROGRESS_S
    while launcher.poll() is None and time.monotonic() < until_s:
        whole = psutil.Process(launcher.pid)
        processes = whole.children(recursive=True)
        found = [whole] if attempt.kind == "launcher" else of_kind(processes, attempt.kind)
        if found:
            return found[-1], processes
        time.sleep(0.005)
    raise NotKilledError(f"{attempt}: it has no {attempt.kind}.\n{log_of(folder, attempt)}")


def wait_for_lines(
    launcher: subprocess.Popen[bytes], folder: Path, attempt: Attempt, lines: int
) -> None:
    """Wait for the attempt's ledgers to have more lines than that."""
    known, since_s = -1, time.monotonic()
    while (present := lines_of(folder, attempt)) <= lines:
        if present > known:
            known, since_s = present, time.monotonic()
        if launcher.poll() is not None:
            problem = f"ended by itself with {launcher.returncode}"
        elif time.monotonic() > since_s + NO_PROGRESS_S:
            problem = f"made no progress for {NO_PROGRESS_S:.0f} s"
        else:
            time.sleep(0.005)
            continue
        raise NotKilledError(f"{attempt}: it {problem}.\n{log_of(folder, attempt)}")


def lines_of(folder: Path, attempt: Attempt) -> int:
    """Return how many lines the ledgers of an attempt have."""
    ledgers = folder.glob(f"ledger-{attempt.number:03d}-*.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in ledgers)


def of_kind(processes: list[psutil.Process], kind: str) -> list[psutil.Process]:
    """Return the processes of that kind; a worker is a child of a rank's fork server."""
    if kind == "worker":
        ranks = of_kind(processes, "rank")
        return [worker for rank in ranks for server in below(rank) for worker in below(server)]
    found = [each for each in processes if COMMANDS[kind] in " ".join(cmdline(each)[:5])]
    return [each for each in found if each.parent() not in found]


def below(process: psutil.Process) -> list[psutil.Process]:
    """Return a process's children, none if it has just ended."""
    try:
        return process.children()
    except psutil.Error:
        return []


def cmdline(process: psutil.Process) -> list[str]:
    """Return a process's command line, empty if it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


if __name__ == "__main__":
    main()
