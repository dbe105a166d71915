"""One training job, one flag: when its first step ends, and how long its epochs take, by mode.

    python benchmarks/channels/modes.py               # needs FUSE

2,000 images of some 100 kB in a real S3 server 30 ms away (50 MB/s a connection), and the same in
a local folder. Each job is `headrace run --contract sagemaker --channel train=... --input-mode
MODE modes_train.py`; in each round all modes take turns, each with empty caches, but for the second
job of a mode, which finds what the first one left.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "tools"), str(HERE.parent), str(HERE.parent / "cluster")]

from launches import printed_epochs  # noqa: E402

from cpu_steal import wait_until_undisturbed  # noqa: E402
from remote import prepare, services  # noqa: E402
from report import Row, ratio, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "channels.md"
JOBS = {"local": 1, "File": 1, "Cache": 2, "Mount": 2, "Stream": 1}
"""How many jobs of each mode follow one another; local: a folder on this host's disk."""
COLUMNS = {
    "first_step_s": "first step", "epoch_0": "first epoch", "epoch_1": "second",
    "epoch_2": "third", "job_s": "whole job",
}  # fmt: skip
NOTES = """
Seconds, the median over rounds. **First step**: from the start of `headrace run` to the end of the
first step, copies and mounts included. **Epochs** are timed from `iter(loader)`. A step sleeps as
long as an emulated device would take, and is the bottleneck; two loader workers decode and crop.
""".strip()


def main() -> None:
    """Run all jobs and write the section of docs/channels.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=200, help="images/s of the device")
    parser.add_argument("--data", type=Path, default=Path("bench-data/remote"))
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    rounds = []
    with services(options.data / "s3") as urls:
        prepare(options.data, options.images, urls)
        for number in range(options.rounds):
            found: dict[str, dict[str, float]] = {}
            for mode in random.Random(number).sample(list(JOBS), len(JOBS)):
                found |= jobs_of(mode, options, urls["objects"])
            rounds.append(found)
            print(f"round {number + 1}: {found}", flush=True)
    report(rounds, options)


def jobs_of(mode: str, options: argparse.Namespace, url: str) -> dict[str, dict[str, float]]:
    """Run the jobs of a mode, one after another."""
    with TemporaryDirectory() as scratch:
        flags = [] if mode == "local" else ["--input-mode", mode]
        if mode == "Cache":
            flags += ["--cache-dir", f"{scratch}/kept"]
        where = (options.data / "images").absolute() if mode == "local" else url
        found = {}
        for job in range(JOBS[mode]):
            wait_until_undisturbed()
            command = [
                sys.executable, "-m", "headrace.cli.main", "run", "--profile", "off",
                "--runs-dir", scratch, "--contract", "sagemaker", "--channel", f"train={where}",
                *flags, str(HERE / "modes_train.py"), str(options.rate),
            ]  # fmt: skip
            began_s = time.time()
            epochs = printed_epochs(command, HEADRACE_CACHE_DIR=f"{scratch}/cache")
            name = mode if job == 0 else f"{mode}, second job"
            found[name] = figures(epochs, began_s)
        return found


def figures(epochs: list[dict[str, Any]], began_s: float) -> dict[str, float]:
    """Return what a job's epochs say, as the table has it."""
    return {
        "first_step_s": epochs[0]["first_s"] - began_s,
        **{f"epoch_{each['epoch']}": each["seconds"] for each in epochs},
        "job_s": time.time() - began_s,
    }


def report(rounds: list[dict[str, dict[str, float]]], options: argparse.Namespace) -> None:
    """Write the table of modes and the ratios that are promised."""
    table = [NOTES, "", "| | " + " | ".join(COLUMNS.values()) + " |"]
    table.append("|---" * (len(COLUMNS) + 1) + "|")
    names = [f"{mode}{end}" for mode, jobs in JOBS.items() for end in ("", ", second job")[:jobs]]
    for name in names:
        cells = [statistics.median(found[name][key] for found in rounds) for key in COLUMNS]
        table.append(f"| {name} | " + " | ".join(f"{cell:.3g}" for cell in cells) + " |")

    def over(key: str, one: str) -> list[float]:
        return ratio(rounds, key, one, "local")

    rows = [
        Row("Mount, warm (second epoch) / local", over("epoch_1", "Mount"), "<= 1.5"),
        Row("Mount, warm (third epoch) / local", over("epoch_2", "Mount"), "<= 1.5"),
        Row("Cache, second job: first epoch / local", over("epoch_0", "Cache, second job"),
            "<= 1.02"),
        Row("Cache, second job: whole job / local", over("job_s", "Cache, second job"), ""),
        Row("Stream: first epoch / local", over("epoch_0", "Stream"), "<= 1.05"),
        Row("Stream: second epoch / local", over("epoch_1", "Stream"), "<= 1.05"),
        Row("Stream: time to the first step / local", over("first_step_s", "Stream"), ""),
        Row("File: time to the first step / local", over("first_step_s", "File"), ""),
    ]  # fmt: skip
    command = f"python benchmarks/channels/modes.py --rounds {options.rounds}"
    command += f" --images {options.images} --rate {options.rate:g}"
    write_section("Modes compared", command, table, rows, page=PAGE, dry=options.dry)


if __name__ == "__main__":
    main()
