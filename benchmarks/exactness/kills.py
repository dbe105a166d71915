"""Exactness: kill -9 of random processes at random instants, restarts at other world sizes.

python benchmarks/exactness/kills.py --kills 20 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import cv2
import numpy as np
import psutil
from audit import Audit, audit

import headrace
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from report import Row, write_section

HERE = Path(__file__).parent
SAMPLES, EPOCHS = 203, 30  # 203 is divided by no batch size in use: every epoch has a tail
WORLDS = (1, 2, 4)
KINDS = ("rank", "worker", "launcher")


def main() -> None:
    """Run the benchmark, write the section "Exactness", exit 1 if a sample was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), options.kills, options.seed, options.epochs)
    description = (
        f"{found.attempts} attempts at world sizes 1, 2 and 4, all but the last ended by kill -9 "
        f"of a rank, a worker or the launcher; {options.epochs} epochs of {SAMPLES} samples with a "
        f"checkpoint every 4 steps; {found.counted:,} samples counted, {found.replaced} of them "
        f"replacements for a damaged one. The last attempt finished: {found.finished}."
    )
    rows = [
        Row("samples lost", [float(len(found.lost))], "<= 0"),
        Row("samples duplicated", [float(len(found.duplicated))], "<= 0"),
    ]
    command = f"python benchmarks/exactness/kills.py --kills {options.kills} --seed {options.seed}"
    write_section("Exactness", command, [description], rows)
    sys.exit(0 if found.finished and not found.lost and not found.duplicated else 1)


def run(folder: Path, kills: int, seed: int, epochs: int) -> Audit:
    """Kill a training `kills` times, let it finish, and audit its ledgers."""
    chance = random.Random(seed)
    data, keys = make_data(folder)
    for attempt in range(kills):
        world = chance.choice(WORLDS)
        launcher = start(folder, data, attempt, world, epochs)
        kind = chance.choice(KINDS)
        after = (chance.randrange(1, 25), chance.uniform(0, 0.2))
        if not kill_after(launcher, folder, attempt, kind, *after):
            break  # it had come to the end
        print(f"attempt {attempt}: world {world}, killed a {kind} after {after[0]} steps",
              file=sys.stderr, flush=True)  # fmt: skip
    last = start(folder, data, kills, 2, epochs)
    last.wait(timeout=600)
    replacements = {}
    for file in folder.rglob("quarantine.jsonl"):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            replacements[record["key"]] = record["replacement_key"]
    return audit(folder, keys, epochs, replacements)


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


def start(folder: Path, data: str, attempt: int, world: int, epochs: int) -> subprocess.Popen:
    """Start one attempt through `headrace run`."""
    log = (folder / f"log-{attempt:03d}.txt").open("wb")
    ranks = [f"--nproc-per-node={world}"] if world > 1 else []
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir",
         str(folder / f"run-{attempt:03d}"), *ranks, str(HERE / "train.py"), "--data", data,
         "--folder", str(folder), "--attempt", str(attempt), "--epochs", str(epochs)],
        stdout=log, stderr=log,
    )  # fmt: skip


def kill_after(
    launcher: subprocess.Popen, folder: Path, attempt: int, kind: str, steps: int, wait_s: float
) -> bool:
    """Kill one process of that kind after so many steps; return False if it ended before.

    A killed worker is replaced and training goes on: there, the launcher is killed a little later.
    """
    if not reached(launcher, folder, attempt, steps):
        return launcher.returncode != 0
    time.sleep(wait_s)  # the random instant itself
    processes = psutil.Process(launcher.pid).children(recursive=True)
    if kind == "worker" and (workers := of_kind(processes, "worker")):
        workers[0].kill()
        if not reached(launcher, folder, attempt, lines_of(folder, attempt) + 6):
            return launcher.returncode != 0
        processes = psutil.Process(launcher.pid).children(recursive=True)
    ranks = of_kind(processes, "rank")
    (ranks[-1] if kind == "rank" and ranks else psutil.Process(launcher.pid)).kill()
    launcher.wait(timeout=120)
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive, f"left running: {alive}"
    return True


def reached(launcher: subprocess.Popen, folder: Path, attempt: int, lines: int) -> bool:
    """Wait for the attempt's ledgers to have more lines; return False if it ended before."""
    while launcher.poll() is None:
        if lines_of(folder, attempt) > lines:
            return True
        time.sleep(0.005)
    return False


def lines_of(folder: Path, attempt: int) -> int:
    """Return how many lines the ledgers of an attempt have."""
    ledgers = folder.glob(f"ledger-{attempt:03d}-*.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in ledgers)


def of_kind(processes: list[psutil.Process], kind: str) -> list[psutil.Process]:
    """Return the ranks, or the loaders' workers, among these processes."""
    ranks = [process for process in processes if "train.py" in " ".join(cmdline(process)[:3])]
    if kind == "rank":
        return ranks
    return [worker for rank in ranks for server in rank.children() for worker in server.children()]


def cmdline(process: psutil.Process) -> list[str]:
    """Return a process's command line, empty if it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


if __name__ == "__main__":
    main()
