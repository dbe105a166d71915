"""Seconds of an epoch for each strategy and each home of the data: the reference's table.

    make bench-strategies

The reference measured eight of these cells on T4 GPUs: one device, DataParallel, DDP and FSDP on
four; files on local disk, the same files through a mount of the bucket, and shards in the bucket
(489, 804; 157, 738; 134, 432, 133 s). Here devices are CUDA's where there are any, and emulated
elsewhere or with --emulate; the bucket is a real S3 server behind a proxy that is 30 ms away at
50 MB/s a connection. The cells take turns.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "tools"), str(HERE.parent), str(HERE.parent / "cluster")]

import torch  # noqa: E402 - after the path
from launches import printed_epochs  # noqa: E402

from headrace.core.env import device_variables, visible_devices  # noqa: E402
from headrace.data.channels.mount.folder_mount import Mount, MountCache  # noqa: E402
from headrace.data.channels.mount.mount_program import choose_programs  # noqa: E402
from headrace.data.storage.urls import parse_url  # noqa: E402
from remote import prepare, services  # noqa: E402
from report import Row, ratio, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "strategies.md"
STRATEGIES = ("single", "dp", "ddp", "fsdp")
PLACES = ("local files", "remote files", "local shards", "remote shards")
NOTES = """
Seconds of one epoch, the median over rounds, and in brackets what was emulated. **single** is one
process with one device, **dp** one process with all of them, **ddp** and **fsdp** one process for
each device, under `headrace run`. Each process has {workers} loader workers. **remote files** are
opened one by one through a mount of the bucket whose cache is empty at the start of each epoch
and which does not read ahead, as in the reference; **remote shards** are streamed, without a
cache.

{labels}
""".strip()
EMULATED = {
    "E": "**E**: each of {devices} devices is emulated at {rate:g} images/s: it sleeps for as "
    "long as its batch takes, while a small model is really trained on the cores, and ranks "
    "average gradients over gloo.",
    "S": "**S**: the scatter of dp is emulated: one process loads the global batch of all "
    "devices, splits it and copies each part, since without CUDA `nn.DataParallel` is the bare "
    "model.",
    "B": "**B**: the bucket is emulated: an S3 server on this machine, behind a proxy with a "
    "latency of 30 ms and 50 MB/s a connection.",
}
"""What a cell may have emulated."""
REAL = "Devices are real: {devices} x {name}, each training a small convolutional net, over nccl."


def main() -> None:
    """Run all cells and write the section of docs/strategies.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--devices", type=int, default=2, help="at most, where they are real")
    parser.add_argument("--emulate", action="store_true", help="even where there are CUDA devices")
    parser.add_argument("--rate", type=float, default=100, help="images/s of an emulated device")
    parser.add_argument("--workers", type=int, default=2, help="of each process")
    parser.add_argument("--data", type=Path, default=Path("bench-data/strategies"))
    parser.add_argument("--dry", action="store_true", help="Write no page.")
    options = parser.parse_args()
    choose_devices(options)
    rounds = []
    with services(options.data / "s3") as urls:
        prepare(options.data, options.images, urls)
        for number in range(options.rounds):
            cells = [(strategy, location) for strategy in STRATEGIES for location in PLACES]
            random.Random(number).shuffle(cells)
            found = {}
            for strategy, location in cells:
                with data_of(location, options.data, urls) as data:
                    found[f"{strategy}, {location}"] = epoch(strategy, location, data, options)
            rounds.append(found)
            print(f"round {number + 1}: {found}", flush=True)
    report(rounds, options)


def choose_devices(options: argparse.Namespace) -> None:
    """Take the CUDA devices that are there, --devices of them at most; else emulate."""
    real = torch.accelerator.device_count() if torch.cuda.is_available() else 0
    options.emulate = options.emulate or real == 0
    if not options.emulate:
        options.devices = min(options.devices, real)
        # DataParallel takes all that it sees.
        os.environ |= device_variables(visible_devices(options.devices))


def emulated_in(strategy: str, location: str, options: argparse.Namespace) -> str:
    """Return what of a cell is emulated, as letters of `EMULATED`; "": nothing."""
    device = "" if not options.emulate else "ES" if strategy == "dp" else "E"
    return device + ("B" if location.startswith("remote") else "")


@contextmanager
def data_of(location: str, folder: Path, urls: dict[str, str]) -> Iterator[str]:
    """Give what a script reads its data from."""
    if location == "local files":
        yield str(folder / "images")
    elif location == "local shards":
        yield str(folder / "shards")
    elif location == "remote shards":
        yield urls["shards"]
    else:
        with TemporaryDirectory(dir=folder) as scratch:
            place = Path(scratch, "bucket")
            place.mkdir()
            cache = MountCache(Path(scratch, "caches"), urls["objects"])
            where = parse_url(urls["objects"])
            program = choose_programs(where, place, cache.folder, cache_bytes=10**10)[0]
            mount = Mount(program, place, cache, ahead_bytes=0)
            try:
                yield str(place)
            finally:
                mount.close()


def epoch(strategy: str, location: str, data: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train one epoch; return its seconds and rate."""
    ranks = options.devices if strategy in {"ddp", "fsdp"} else 1
    with TemporaryDirectory() as runs:
        command = [
            sys.executable, "-m", "headrace.cli.main", "run", "--runs-dir", runs,
            "--profile", "off", "--nproc-per-node", str(ranks), str(HERE / "train.py"),
            "--strategy", strategy, "--data", data, "--devices", str(options.devices),
            "--rate", str(options.rate), "--workers", str(options.workers),
            *(["--emulate"] if options.emulate else []),
            *(["--shards"] if "shards" in location else []),
        ]  # fmt: skip
        (printed,) = printed_epochs(command)
    samples = printed["samples"] * ranks
    return {"epoch_s": printed["seconds"], "images_s": samples / printed["seconds"]}


def legend(options: argparse.Namespace) -> str:
    """Return what the letters in the cells mean, a line each."""
    used = {
        letter
        for one in STRATEGIES
        for location in PLACES
        for letter in emulated_in(one, location, options)
    }
    lines = [text.format(**vars(options)) for letter, text in EMULATED.items() if letter in used]
    if not options.emulate:
        name = torch.cuda.get_device_name(0)
        lines.insert(0, REAL.format(devices=options.devices, name=name))
    return "\n".join(f"- {line}" for line in lines)


def report(rounds: list[dict[str, dict[str, Any]]], options: argparse.Namespace) -> None:
    """Write the table, and the ratios that the reference's table shows."""
    lines = [NOTES.format(workers=options.workers, labels=legend(options)), ""]
    lines += ["| | " + " | ".join(PLACES) + " |", "|---" * (len(PLACES) + 1) + "|"]
    for strategy in STRATEGIES:
        cells = [
            statistics.median(found[f"{strategy}, {location}"]["epoch_s"] for found in rounds)
            for location in PLACES
        ]
        cells_text = [
            f"{cell:.3g} [{emulated_in(strategy, location, options) or 'real'}]"
            for cell, location in zip(cells, PLACES, strict=True)
        ]
        lines.append(f"| {strategy} | " + " | ".join(cells_text) + " |")

    def over(one: str, other: str) -> list[float]:
        return ratio(rounds, "epoch_s", one, other)

    rows = [
        Row("ddp: remote shards / local shards (reference 133 / 131)",
            over("ddp, remote shards", "ddp, local shards"), "<= 1.05"),
        Row("ddp: remote shards / local files (reference 133 / 134)",
            over("ddp, remote shards", "ddp, local files"), "<= 1.05"),
        Row("fsdp: remote shards / local files", over("fsdp, remote shards", "fsdp, local files"),
            "<= 1.05"),
        Row("ddp: remote files / local files (reference 432 / 134)",
            over("ddp, remote files", "ddp, local files"), ""),
        Row("dp: remote files / local files (reference 738 / 157)",
            over("dp, remote files", "dp, local files"), ""),
        Row("single, remote files / ddp, remote shards (reference 804 / 133)",
            over("single, remote files", "ddp, remote shards"), ""),
    ]  # fmt: skip
    command = (
        f"python benchmarks/strategies/run.py --rounds {options.rounds} --images {options.images} "
        f"--devices {options.devices} --rate {options.rate:g} --workers {options.workers}"
        + (" --emulate" if options.emulate else "")
    )
    title = "Strategies and data locations"
    write_section(title, command, lines, rows, page=PAGE, dry=options.dry)


if __name__ == "__main__":
    os.environ.pop("RANK", None)
    main()
