"""Faults of object storage, of what it delivers, and of the disk cache."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from ledger import LedgerError, Reading, check, check_bytes, make_dataset, read_ledger
from matrix import Case, Figures, Row, read_by_script, reading, wait_for
from slow_proxy import Faults, slow_proxy

import headrace
from headrace.data.storage import open_store

SAMPLES = 240
LATENCY_MS = 5.0
STEP_MS = 30  # of a batch of 8: a device that takes 270 samples a second


def busy(case: Case) -> Figures:
    """503 SlowDown on 1, 10 and 50 % of the requests."""
    digests = make_dataset(case.folder, case.url, SAMPLES, seed=case.seed)
    seconds: dict[float, float] = {}
    requests: dict[float, float] = {}
    for share, epochs in ((0.0, 6), (0.01, 2), (0.1, 6), (0.5, 2)):
        faults = Faults(busy=share, seed=case.seed)
        # Four workers: two are just enough without faults, so that any delay would be seen.
        flags = (f"--step-ms={STEP_MS}", f"--epochs={epochs}", "--workers=4")
        found, counts = _behind(case, f"busy-{share}", faults, *flags)
        check(found, digests, epochs, bad=set())
        # The first one contains the start of the workers; a burst of another job spoils one.
        seconds[share] = statistics.median(found.seconds[1:])
        requests[share] = counts["requests"] / sum(found.seconds)
    return {
        "time with 10 % busy, of without": seconds[0.1] / seconds[0.0],
        "time with 50 % busy, of without": seconds[0.5] / seconds[0.0],
        "requests a second with 50 % busy, of without": requests[0.5] / requests[0.0],
    }


def stalls(case: Case) -> Figures:
    """An answer that comes 5 s late, on 1 % of the requests."""
    digests = make_dataset(case.folder, case.url, SAMPLES, seed=case.seed)
    calm, calm_counts = _behind(case, "calm", Faults())
    found, counts = _behind(case, "stalls", Faults(stall=0.01, stall_s=5.0, seed=case.seed))
    check(found, digests, 2, bad=set())
    extra = counts["requests"] / calm_counts["requests"] - 1
    return {
        "longest wait for a batch, s": max(found.waits_s),
        "99th percentile of waits, s more": _high(found) - _high(calm),
        "more GETs, share": extra,
    }


def resets(case: Case) -> Figures:
    """Connections that are reset, or closed in the middle of an answer."""
    digests = make_dataset(case.folder, case.url, SAMPLES, seed=case.seed)
    faults = Faults(reset=0.1, short_body=0.05, seed=case.seed)
    found, counts = _behind(case, "resets", faults)
    check(found, digests, 2, bad=set())
    return {"requests that suffered, share": _suffered(counts, "reset", "short_body")}


def wrong_answers(case: Case) -> Figures:
    """Short bodies under right headers, cut ranges, flipped bits on the way."""
    digests = make_dataset(case.folder, case.url, SAMPLES, seed=case.seed)
    faults = Faults(short_body=0.03, cut_range=0.03, flip=0.03, seed=case.seed)
    found, counts = _behind(case, "wrong", faults, "--max-bad-rate=0.05")
    check(found, digests, 2)  # what arrives damaged four times is replaced by name
    return {
        "requests that suffered, share": _suffered(counts, "short_body", "cut_range", "flip"),
        "samples replaced": len(found.replaced),
    }


def changed_object(case: Case) -> Figures:
    """A shard is replaced by another of the same size in the middle of an epoch."""
    digests = make_dataset(case.folder, case.url, SAMPLES, seed=case.seed, shard_bytes=40_000)
    store = open_store(case.url)
    shards = sorted(each.path for each in store.list() if each.path.endswith(".tar"))
    changed = case.chance.choice(shards)
    folder = case.new_folder("changed")
    flags = (f"--pause-after={case.chance.randrange(1, 8)}", "--epochs=2")
    with reading(folder, case.url, *flags, **case.environment) as process:
        wait_for((folder / "paused").exists, "the middle of an epoch")
        content = bytearray(store.get(changed))
        content[1024:-1024] = bytes(255 - byte for byte in content[1024:-1024])
        store.put(changed, bytes(content))
        (folder / "go").touch()
        process.wait(timeout=300)
    found = read_ledger(folder)
    check_bytes(found, digests)
    if not found.error and not found.replaced:
        raise LedgerError(f"{changed} was replaced, and nobody noticed")
    if found.error and changed not in found.message and not found.replaced:
        raise LedgerError(f"the error does not name {changed}: {found.message}")
    return {"ended by an error that names it": float(bool(found.error))}


def damaged_bytes(case: Case) -> Figures:
    """Bits that flip in files of the cache, then in a shard."""
    digests = make_dataset(case.folder, case.url, SAMPLES, seed=case.seed)
    cache = case.folder / "cache"
    flags = ("--epochs=1", f"--cache={cache}")
    check(_plain(case, "filled", *flags), digests, 1, bad=set())
    blocks = [file for file in cache.rglob("*") if file.is_file() and file.stat().st_size > 1000]
    for file in case.chance.sample(blocks, max(1, len(blocks) // 3)):
        _flip_bit(case, file)
    check(_plain(case, "again", *flags), digests, 1, bad=set())
    local = str(case.folder / "local")
    digests = make_dataset(case.folder / "more", local, SAMPLES, seed=case.seed)
    bad = _damage_samples(case, local, 2)
    found = read_by_script(case.new_folder("shard"), local, "--max-bad-rate=0.05")
    check(found, digests, 1, bad=bad)
    return {"blocks of the cache": len(blocks), "samples replaced": len(bad)}


def denied(case: Case) -> Figures:
    """Credentials that the server does not accept, then a bucket that is not there."""
    make_dataset(case.folder, case.url, 8, seed=case.seed)
    began_s = time.monotonic()
    wrong = case.environment | {"AWS_SECRET_ACCESS_KEY": f"wrong-{case.seed}"}
    found = read_by_script(case.new_folder("denied"), case.url, **wrong)
    denied_s = time.monotonic() - began_s
    if found.error not in {"DeniedError", "CredentialsError"}:
        raise LedgerError(f"wrong credentials gave {found.error or 'no error'}: {found.message}")
    if wrong["AWS_SECRET_ACCESS_KEY"] in found.message:
        raise LedgerError("the error has the secret key in it")
    absent = read_by_script(case.new_folder("absent"), "s3://no-such-bucket/x", **case.environment)
    if not absent.error or "no-such-bucket" not in absent.message:
        raise LedgerError(f"an absent bucket gave {absent.error or 'no error'}: {absent.message}")
    return {"seconds to the error, the script's start included": denied_s}


def bad_disks(case: Case) -> Figures:
    """A cache on a full disk, on one that is read-only, and one that vanishes."""
    digests = make_dataset(case.folder, case.url, SAMPLES, seed=case.seed)
    mount = case.new_folder("mount")
    flags = ("--epochs=1", f"--cache={mount}/cache")
    size = f"{case.chance.randrange(8, 200)}k"
    for name, options in (("full", f"size={size}"), ("read-only", "ro,size=1m")):
        prefix = _with_disk(mount, options)
        found = read_by_script(
            case.new_folder(name), case.url, *flags, prefix=prefix, **case.environment
        )
        check(found, digests, 1, bad=set())
    folder = case.new_folder("vanished")
    cache = case.folder / "cache"
    pausing = ("--epochs=2", f"--cache={cache}", "--pause-after=5")
    with reading(folder, case.url, *pausing, **case.environment) as process:
        wait_for((folder / "paused").exists, "the middle of an epoch")
        cache.rename(case.folder / "gone")
        (folder / "go").touch()
        process.wait(timeout=300)
    check(read_ledger(folder), digests, 2, bad=set())
    return {}


def _with_disk(mount: Path, options: str) -> list[str]:
    """Return the words before a command that finds a disk of its own at a folder."""
    script = f"mount -t tmpfs -o {options} none '{mount}' && exec \"$@\""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]


def _behind(case: Case, name: str, faults: Faults, *flags: str) -> tuple[Reading, dict[str, int]]:
    """Read two epochs through a proxy that makes faults; return what was read and its counts.

    `flags` may name other epochs.
    """
    with slow_proxy(case.server.endpoint, latency_ms=LATENCY_MS, faults=faults) as proxy:
        environment = case.environment | {"AWS_ENDPOINT_URL": proxy.endpoint}
        folder = case.new_folder(name)
        found = read_by_script(folder, case.url, "--epochs=2", *flags, **environment)
        return found, proxy.counts()


def _plain(case: Case, name: str, *flags: str) -> Reading:
    return read_by_script(case.new_folder(name), case.url, *flags, **case.environment)


def _suffered(counts: dict[str, int], *names: str) -> float:
    return sum(counts.get(name, 0) for name in names) / counts["requests"]


def _high(found: Reading) -> float:
    return statistics.quantiles(found.waits_s, n=100)[-1]


def _flip_bit(case: Case, file: Path) -> None:
    with file.open("r+b") as block:
        block.seek(case.chance.randrange(file.stat().st_size))
        byte = block.read(1)[0]
        block.seek(-1, os.SEEK_CUR)
        block.write(bytes([byte ^ 1 << case.chance.randrange(8)]))


def _damage_samples(case: Case, url: str, count: int) -> set[str]:
    """Flip a bit in the image of some samples of a local dataset; return their keys."""
    index = headrace.ShardDataset(url).index
    chosen = [index.locate(each) for each in case.chance.sample(range(SAMPLES), count)]
    for location in chosen:
        image = next(member for member in location.members if member.extension == "jpg")
        with (Path(url) / location.path).open("r+b") as shard:
            shard.seek(image.offset + case.chance.randrange(image.size_bytes))
            byte = shard.read(1)[0]
            shard.seek(-1, os.SEEK_CUR)
            shard.write(bytes([byte ^ 1 << case.chance.randrange(8)]))
    return {location.key for location in chosen}


ROWS = (
    Row(
        fault="503 SlowDown on 1, 10 and 50 % of requests, four workers",
        passes="exact; 10 % cost at most 15 % of the throughput; the rate of requests falls",
        run=busy,
        limits={
            "time with 10 % busy, of without": 1 / 0.85,
            "requests a second with 50 % busy, of without": 1.0,
        },
    ),
    Row(
        fault="answers 5 s late on 1 % of requests",
        passes="exact; requested anew after 2 s; at most 5 % more GETs",
        run=stalls,
        limits={"longest wait for a batch, s": 4.0, "more GETs, share": 0.05},
    ),
    Row(fault="connections reset, closed in the middle", passes="exact", run=resets),
    Row(
        fault="short bodies, cut ranges, flipped bits",
        passes="exact; what arrives damaged four times is replaced by name",
        run=wrong_answers,
    ),
    Row(
        fault="a shard replaced in the middle of an epoch",
        passes="never other bytes; noticed and named",
        run=changed_object,
    ),
    Row(
        fault="flipped bits in the cache and in a shard",
        passes="cache: read anew, exact; shard: exactly those samples replaced",
        run=damaged_bytes,
    ),
    Row(
        fault="wrong credentials, no such bucket",
        passes="an error within 10 s that names it, without the secret",
        run=denied,
        limits={"seconds to the error, the script's start included": 10.0},
    ),
    Row(fault="cache: disk full, read-only, vanished", passes="exact, without it", run=bad_disks),
)
