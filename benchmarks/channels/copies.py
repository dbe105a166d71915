"""Does a channel's copy end at the rate of the link or of the disk? For large and small objects.

    python benchmarks/channels/copies.py                     # under two minutes
    python benchmarks/channels/copies.py --small 100000      # the case of 100,000 files of 10 kB
    python benchmarks/channels/copies.py --link-mbit 40      # behind a link of a rate (needs root)

A real S3 server on this machine. With --link-mbit it and its clients are in a network namespace
of their own, over whose link no more bits a second go; --latency-ms and --rate-mb put a proxy
between them, which takes some of the cores. Three arms take turns in each round, each in a process
of its own, its start not counted: the copy as `headrace run` makes it, into an empty cache; the
same objects read by the client alone, as many requests in flight, nothing hashed and nothing
written; the same bytes written to files of the same disk. The slower one of the last two is what a
copy could reach where a link or a disk sets the pace; where the server has the same cores, these
may: the last column says how busy they were meanwhile.

Begin five minutes after anything that removed many files of the disk: ext4 looks at each inode
that was removed lately before it gives one out, and makes files ten times slower meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import obstore
import psutil
from obstore.store import S3Store
from s3_server import s3_server
from slow_proxy import slow_proxy

from cpu_steal import wait_until_undisturbed
from headrace.core import env
from headrace.core.units import parse_bytes
from headrace.data.channels.copy.cache_dir import CacheDir
from headrace.data.channels.copy.fetcher import (
    MAX_PART_REQUESTS,
    MAX_REQUESTS,
    MAX_SMALL_REQUESTS,
    WRITING_THREADS,
)
from headrace.data.channels.copy.object_files import PART_BYTES
from headrace.data.channels.copy.trees import CacheTrees
from headrace.data.channels.listing import list_channel
from headrace.data.channels.sidecar_client import ChannelRequest
from headrace.data.storage import StorageConfig, declare_leaf, open_store
from headrace.data.storage.urls import parse_url

ARMS = ("copy", "read", "write")
SMALL_BYTES = 10_000
_NEW_NETWORK = 0x40000000  # <linux/sched.h>: CLONE_NEWNET
_MTU_BYTES = 9000  # of data centres' networks


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", type=int, default=5000, help="objects of 10 kB")
    parser.add_argument("--large", default="512MiB", help="size of each of two large objects")
    parser.add_argument("--only", choices=("large", "small"), help="of the two rows one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency-ms", type=float, default=0.0, help="distance of the server")
    parser.add_argument("--rate-mb", type=float, default=0.0, help="of a connection, MB/s")
    parser.add_argument("--link-mbit", type=float, help="of all connections together, Mbit/s")
    parser.add_argument("--folder", help="where to write; by default the system's temporary one")
    parser.add_argument("--arm", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arm:
        print(json.dumps(run_arm(*args.arm)), flush=True)
        os._exit(0)  # the client's threads do not survive that the interpreter is taken apart
    if args.link_mbit:
        open_link()
    with TemporaryDirectory(dir=args.folder) as folder, s3_server(Path(folder) / "s3") as server:
        env.change(server.environment())
        prefix = f"s3://{server.bucket}"
        rows = [args.only] if args.only else ["large", "small"]
        if "large" in rows:
            fill(f"{prefix}/large", 2, parse_bytes(args.large))
        if "small" in rows:
            fill(f"{prefix}/small", args.small, SMALL_BYTES)
        if args.link_mbit:
            limit_link(args.link_mbit)
        print("| objects | copy | client alone | disk alone | copy / slower of both | cores busy |")
        print("|---|---|---|---|---|---|")
        with slow_proxy(server.endpoint, latency_ms=args.latency_ms, rate_mb=args.rate_mb) as proxy:
            if args.latency_ms or args.rate_mb:
                env.AWS_ENDPOINT_URL.set(proxy.endpoint)
            for name in rows:
                print(row(name, f"{prefix}/{name}", Path(folder), args), flush=True)


def open_link() -> None:
    """Have a network of this process's own: a loopback device, with packets as on Ethernet."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) != 0:
        raise SystemExit(f"--link-mbit: {os.strerror(ctypes.get_errno())}. It needs root.")
    subprocess.run(["ip", "link", "set", "lo", "mtu", str(_MTU_BYTES), "up"], check=True)


def limit_link(mbit: float) -> None:
    """Let no more bits a second through; what comes faster waits in a queue of 0.4 s."""
    subprocess.run(
        ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{mbit}mbit",
         "burst", f"{max(64, round(mbit))}kb", "latency", "400ms"],
        check=True,
    )  # fmt: skip


def fill(url: str, count: int, size_bytes: int) -> None:
    """Put objects of random bytes."""
    store = open_store(url)
    block = os.urandom(min(size_bytes, 2**24) + count)
    for number in range(count):
        left = size_bytes
        pieces = []
        while left:
            pieces.append(block[number : number + left][: 2**24])
            left -= len(pieces[-1])
        store.put(f"{number // 1000:03d}/{number:06d}.bin", iter(pieces))
    store.close()


def row(name: str, url: str, folder: Path, args: argparse.Namespace) -> str:
    """Run all arms in turns and return a row of the table."""
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    ratios, busy = [], []
    for number in range(args.rounds):
        for arm in ARMS[number % 3 :] + ARMS[: number % 3]:
            wait_until_undisturbed()
            place = folder / f"{name}-{number}-{arm}"  # kept: what was removed slows the next arm
            command = [sys.executable, __file__, "--arm", arm, url, str(place)]
            ended = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, env=env.child_environment()
            )
            found = json.loads(ended.stdout)
            rates[arm].append(found["size_bytes"] / found["seconds"] / 1e6)
            if arm == "copy":
                busy.append(found["busy"])
            os.sync()  # what one arm wrote must not be written out in the next one's time
        ratios.append(rates["copy"][-1] / min(rates["read"][-1], rates["write"][-1]))
    many = f"{args.small:,} of 10 kB" if name == "small" else f"2 of {args.large}"
    cells = [f"{statistics.median(rates[arm]):.0f} MB/s" for arm in ARMS]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    return f"| {many} | {' | '.join(cells)} | {spread} | {statistics.median(busy):.0%} |"


def run_arm(arm: str, url: str, place: str) -> dict[str, float]:
    """Run one arm; return its seconds and bytes."""
    declare_leaf()
    config = StorageConfig(in_flight=MAX_REQUESTS)
    wanted = ChannelRequest(name="train", url=url, folder=place)
    if arm == "write":  # it needs to know what is to be written, and takes nothing from there
        sizes = [info.size_bytes for info in list_channel(wanted, config).objects]
        block = os.urandom(PART_BYTES)
    psutil.cpu_percent()
    began = time.perf_counter()
    if arm == "write":
        size_bytes = write_files(Path(place), sizes, block)
    else:
        size_bytes = copy(wanted, config) if arm == "copy" else asyncio.run(read(wanted))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "size_bytes": size_bytes, "busy": psutil.cpu_percent() / 100}


def copy(wanted: ChannelRequest, config: StorageConfig) -> int:
    """Copy, as the process does that `headrace run` starts."""
    listing = list_channel(wanted, config)
    CacheTrees(CacheDir(Path(wanted.folder)), None, config).hold(wanted.name, listing)
    return listing.size_bytes


async def read(wanted: ChannelRequest) -> int:
    """Read by the client alone, and drop what comes."""
    location = parse_url(wanted.url)
    store = S3Store(
        location.root,
        endpoint=env.AWS_ENDPOINT_URL.get(),
        client_options={"allow_http": True},
    )
    found = [meta for page in obstore.list(store, location.prefix) for meta in page]
    small = iter([meta["path"] for meta in found if meta["size"] <= PART_BYTES])
    parts = iter(
        [
            (meta["path"], start, min(PART_BYTES, meta["size"] - start))
            for meta in found
            if meta["size"] > PART_BYTES
            for start in range(0, meta["size"], PART_BYTES)
        ]
    )

    async def whole() -> None:
        for path in small:
            result = await obstore.get_async(store, path)
            await result.bytes_async()

    async def ranged() -> None:
        for path, start, length in parts:
            await obstore.get_range_async(store, path, start=start, length=length)

    await asyncio.gather(
        *(whole() for _ in range(MAX_SMALL_REQUESTS)), *(ranged() for _ in range(MAX_PART_REQUESTS))
    )
    return sum(meta["size"] for meta in found)


def write_files(place: Path, sizes: list[int], block: bytes) -> int:
    """Write files of these sizes, as many at a time as the copy does."""
    place.mkdir(parents=True)

    def write(number: int) -> None:
        with (place / str(number)).open("xb", buffering=0) as file:
            for start in range(0, sizes[number], PART_BYTES):
                file.write(memoryview(block)[: sizes[number] - start])

    with ThreadPoolExecutor(WRITING_THREADS) as pool:
        for _ in pool.map(write, range(len(sizes))):
            pass
    return sum(sizes)


if __name__ == "__main__":
    main()
