"""Remote equals local: epochs from S3, 30 ms away at 50 MB/s a connection, against local disk.

    python benchmarks/remote.py --rounds 5

A step on an emulated accelerator takes BATCH / RATE seconds; the same in all arms, so slow that
loader, S3 server and proxy together leave at least 40 % of the cores idle (printed). The arms take
turns within each round.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import psutil
from s3_server import s3_server
from slow_proxy import slow_proxy

import headrace
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_index import open_index
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.storage import open_store
from headrace.data.transforms import OnMembers, RandomResizedCrop
from headrace.data.transforms.decode import decode_member
from images import make_folder
from report import Row, ratio, write_section

NOTES = """
Times begin at `iter(loader)`, after the dataset and the loader are made. Remote and local differ
by the first batch, a quarter of a second once an epoch, so short epochs show it most.

The reads of the first batch go before those of all others (`FirstBatchEvent`), and the S3 server
keeps its file metadata.
""".strip()
BATCH, WORKERS = 64, 2
LATENCY_MS, RATE_MB = 30, 50


def main() -> None:
    """Run all arms and write the section "Remote equals local" of docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=250, help="images/s of the accelerator")
    parser.add_argument("--data", type=Path, default=Path("bench-data/remote"))
    options = parser.parse_args()
    rounds = []
    with services(options.data / "s3") as urls:
        prepare(options.data, options.images, urls)
        arms = {
            "local shards": str(options.data / "shards"),
            "remote shards": urls["shards"],
            "local files": str(options.data / "images"),
            "remote objects": urls["objects"],
        }
        for number in range(options.rounds):
            names = random.Random(number).sample(list(arms), len(arms))
            rounds.append({name: epoch(arms[name], options) for name in names})
            print(f"round {number + 1}: {rounds[-1]}", flush=True)
    command = (
        f"python benchmarks/remote.py --rounds {options.rounds} --images {options.images} "
        f"--rate {options.rate:g}"
    )
    report(rounds, command)


@contextmanager
def services(folder: Path) -> Iterator[dict[str, str]]:
    """Run the S3 server and the slow proxy before it; the environment points at the proxy."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(dir=folder) as blobs,
        s3_server(Path(blobs)) as server,
        slow_proxy(server.endpoint, latency_ms=LATENCY_MS, rate_mb=RATE_MB) as proxy,
    ):
        os.environ.update(server.environment())
        direct = server.environment()["AWS_ENDPOINT_URL"]
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        bucket = f"s3://{server.bucket}"
        yield {"shards": f"{bucket}/shards", "objects": f"{bucket}/objects", "direct": direct}


def prepare(folder: Path, count: int, urls: dict[str, str]) -> None:
    """Make images and shards on disk and in the bucket, past the proxy."""
    files = make_folder(folder / "images", count)
    images = str(folder / "images")
    options = PackOptions(shard_bytes=16 << 20, workers=2)
    if not is_dataset_of(count, folder / "shards"):
        shutil.rmtree(folder / "shards", ignore_errors=True)
        pack(images, str(folder / "shards"), options, check=decode_member)
    if not is_dataset_of(count, folder / "images"):
        for name in ("manifest.json", "index.arrow"):
            (folder / "images" / name).unlink(missing_ok=True)
        index_in_place(images)
    slow = os.environ["AWS_ENDPOINT_URL"]
    os.environ["AWS_ENDPOINT_URL"] = urls["direct"]
    pack(images, urls["shards"], options, check=decode_member)
    store = open_store(urls["objects"])
    for file in files:
        store.put(str(file.relative_to(folder / "images")), file)
    index_in_place(urls["objects"])
    os.environ["AWS_ENDPOINT_URL"] = slow


def is_dataset_of(count: int, folder: Path) -> bool:
    """Whether an earlier run left a dataset of as many samples here."""
    return (folder / "manifest.json").exists() and len(open_index(str(folder))) == count


def epoch(url: str, options: argparse.Namespace) -> dict[str, float]:
    """Train one epoch on the emulated accelerator; return its seconds and what it took."""
    cpu_before, wall_before = machine_cpu_s(), time.perf_counter()
    dataset = headrace.ShardDataset(
        url, transform=OnMembers("jpg", RandomResizedCrop(224)), cache_dir=None
    )
    assert len(dataset) == options.images, f"{url} has {len(dataset)} samples"
    loader = headrace.DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True)
    began = time.perf_counter()
    first_batch_s = None
    for batch in loader:
        first_batch_s = first_batch_s or time.perf_counter() - began
        time.sleep(len(batch["cls"]) / options.rate)  # the emulated accelerator
    epoch_s = time.perf_counter() - began
    assert first_batch_s is not None
    cores = (machine_cpu_s() - cpu_before) / (time.perf_counter() - wall_before)
    return {
        "epoch_s": epoch_s,
        "first_batch_s": first_batch_s,
        "wait_share": loader.stats().data_wait_share,
        "busy_share_of_cores": cores / (os.cpu_count() or 1),
    }


def machine_cpu_s() -> float:
    """Return the CPU seconds that this benchmark's processes have used, servers included."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system
    own = psutil.Process().cpu_times()
    return total + own.children_user + own.children_system


def report(rounds: list[dict[str, dict[str, float]]], command: str) -> None:
    """Write the table of arms and the ratios that are promised."""
    columns = ("epoch_s", "first_batch_s", "wait_share", "busy_share_of_cores")
    table = [NOTES, "", "| arm | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for arm in rounds[0]:
        medians = [sorted(found[arm][key] for found in rounds)[len(rounds) // 2] for key in columns]
        table.append(f"| {arm} | " + " | ".join(f"{value:.3g}" for value in medians) + " |")
    rows = [
        Row(
            "epoch, remote shards / local shards",
            ratio(rounds, "epoch_s", "remote shards", "local shards"),
            "<= 1.05",
        ),
        Row(
            "epoch, remote objects / local files",
            ratio(rounds, "epoch_s", "remote objects", "local files"),
            "<= 1.10",
        ),
        Row(
            "first batch from remote shards, s",
            [found["remote shards"]["first_batch_s"] for found in rounds],
            "<= 1.0",
        ),
        Row(
            "share of the cores that was busy",
            [max(arm["busy_share_of_cores"] for arm in found.values()) for found in rounds],
            "<= 0.6",
        ),
    ]
    write_section("Remote equals local", command, table, rows)


if __name__ == "__main__":
    main()
