"""Faults of samples and shards: broken and hostile content, unequal sizes, too many of them."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from ledger import LedgerError, check, digests_of, make_dataset, read_ledger
from matrix import Case, Figures, Row, read_by_script

import headrace
from headrace.core.errors import UsageError
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions

PICTURES = 60


def broken_images(case: Case) -> Figures:
    """Truncated, empty, random and enormous images in a shard that is indexed as it is."""
    good = {f"{number:04d}": _jpeg(case, number) for number in range(PICTURES)}
    bad = dict(zip(case.chance.sample(sorted(good), 4), _broken(case), strict=True))
    digests = digests_of(_indexed(case, "good", good)[0])
    url, said = _indexed(case, "broken", good | bad)
    empty = {key for key, content in bad.items() if not content}  # left out by the index
    for key in empty:
        if f"{key}.jpg is empty" not in said:
            raise LedgerError(f"{key}.jpg is empty, and was not named: {said}")
        del digests[key]
    found = read_by_script(case.new_folder("read"), url, "--max-bad-rate=0.5")
    check(found, digests, 1, bad=set(bad) - empty)
    return {"samples replaced": len(bad) - len(empty), "left out when indexing": len(empty)}


def _indexed(case: Case, name: str, images: dict[str, bytes]) -> tuple[str, str]:
    """Write images to a tar, index it; return where the index is, and what was printed."""
    tars = case.new_folder(name)
    with tarfile.open(tars / "000000.tar", "w") as tar:
        for key in sorted(images):
            _add(tar, f"{key}.jpg", images[key])
    to = str(case.folder / f"{name}-index")
    done = _headrace("data", "index", str(tars), "--to", to, "--max-bad", "1.0")
    return to, done.stdout + done.stderr


def too_many(case: Case) -> Figures:
    """More damaged samples than are allowed, on two ranks."""
    url = str(case.folder / "data")
    make_dataset(case.folder, url, 80, seed=case.seed)
    index = headrace.ShardDataset(url).index
    for sample in case.chance.sample(range(80), 12):
        location = index.locate(sample)
        with (Path(url) / location.path).open("r+b") as shard:
            shard.seek(location.members[0].offset)
            shard.write(os.urandom(16))
    folder = case.new_folder("ranks")
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "run", "--nproc-per-node=2", "--run-dir=run",
         str(Path(__file__).parent / "reader.py"), url, "--epochs=1"],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = [read_ledger(folder / f"rank-{rank}") for rank in range(2)]
    if done.returncode == 0 or {each.error for each in found} != {"TooManyBadSamplesError"}:
        raise LedgerError(f"ended with {done.returncode}: {[each.error for each in found]}")
    if len({len(each.waits_s) for each in found}) != 1:
        raise LedgerError("the ranks stopped at different steps")
    return {}


def unequal_shards(case: Case) -> Figures:
    """Shards of very different sizes, of one sample, fewer samples than ranks."""
    for number in range(3):
        url = str(case.folder / f"data-{number}")
        samples = case.chance.choice((1, 2, 5, case.chance.randrange(20, 120)))
        _pack_unequal(case, case.folder / f"images-{number}", url, samples)
        dataset = headrace.ShardDataset(url, transform=key_of)
        for world in (1, 2, 4):
            if samples < world:
                _check_refused(case, dataset, world)
            else:
                _check_once(case, dataset, world)
    return {}


def _loaders(case: Case, dataset: headrace.ShardDataset, world: int) -> list[headrace.DataLoader]:
    return [
        headrace.DataLoader(
            dataset, 4, shuffle=True, seed=case.seed, num_workers=0, rank=rank, world=world
        )
        for rank in range(world)
    ]


def _check_refused(case: Case, dataset: headrace.ShardDataset, world: int) -> None:
    for rank in range(world):
        try:
            _loaders(case, dataset, world)[rank]
        except UsageError:
            continue
        raise LedgerError(f"{len(dataset)} samples for {world} ranks: rank {rank} took them")


def _check_once(case: Case, dataset: headrace.ShardDataset, world: int) -> None:
    taken = [list(loader) for loader in _loaders(case, dataset, world)]
    if len({len(batches) for batches in taken}) != 1:
        raise LedgerError(f"{len(dataset)} samples, {world} ranks: steps differ")
    seen = Counter(key for batches in taken for keys in batches for key in keys)
    if len(seen) != len(dataset) or set(seen.values()) - {1}:
        raise LedgerError(f"{len(dataset)} samples, {world} ranks: {seen}")


def key_of(sample: dict[str, Any]) -> str:
    """Return a sample's key."""
    return sample["__key__"]


def hostile_shards(case: Case) -> Figures:
    """Members that would leave the folder, links, devices, programs, pickles."""
    hostile = [
        ("../outside.jpg", tarfile.REGTYPE), (f"{case.folder}/absolute.jpg", tarfile.REGTYPE),
        ("link.jpg", tarfile.SYMTYPE), ("hard.jpg", tarfile.LNKTYPE),
        ("pipe.jpg", tarfile.FIFOTYPE), ("device.jpg", tarfile.CHRTYPE),
    ]  # fmt: skip
    rejected = 0
    for name, kind in hostile:
        folder = case.new_folder(f"tar-{rejected}")
        with tarfile.open(folder / "000000.tar", "w") as tar:
            _add(tar, "0000.jpg", _jpeg(case, 0))
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            member.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"abc"))
            for ending in ("pickle", "pyd", "pth"):
                _add(tar, f"0000.{ending}", b"cos\nsystem\n(S'touch executed'\ntR.")
        before = _files(case.folder)
        to = case.folder / f"index-{rejected}"
        done = _headrace("data", "index", str(folder), "--to", str(to), code=None)
        new = {path for path in _files(case.folder) - before if to not in path.parents}
        if new or Path("executed").exists():
            raise LedgerError(f"{name}: wrote {new or 'executed'}")
        said = done.stdout + done.stderr
        if Path(name).name.partition(".")[0] not in said:
            raise LedgerError(f"{name} was not named: {said}")
        rejected += 1
    return {"kinds of members, each named": rejected}


def _pack_unequal(case: Case, images: Path, url: str, samples: int) -> None:
    for number in range(samples):
        path = images / "x" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        side = case.chance.choice((8, 8, 8, 200))
        noise = np.random.default_rng(number).integers(0, 255, (side, side, 3), np.uint8)
        cv2.imwrite(str(path), noise)
    pack(str(images), url, PackOptions(shard_bytes=case.chance.choice((1, 20_000, 10**9))))


def _broken(case: Case) -> list[bytes]:
    whole = _jpeg(case, 1)
    return [
        whole[: case.chance.randrange(20, len(whole) // 2)],
        b"",
        case.chance.randbytes(500),
        _bomb(case.chance.choice((30_000, 60_000))),
    ]


def _bomb(side: int) -> bytes:
    """Return a small PNG of an enormous image of zeros."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check_sum = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check_sum

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(10**6))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def _jpeg(case: Case, number: int) -> bytes:
    noise = np.random.default_rng(case.seed * 1000 + number).integers(0, 255, (24, 24, 3), np.uint8)
    return cv2.imencode(".jpg", noise)[1].tobytes()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.parent.rglob("*") if path.is_file()}


def _headrace(*words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if code is not None and done.returncode != code:
        raise LedgerError(f"headrace {words[:2]} ended with {done.returncode}: {done.stderr}")
    if "Traceback" in done.stderr:
        raise LedgerError(f"headrace {words[:2]}: {done.stderr}")
    return done


ROWS = (
    Row(
        fault="images that are truncated, empty, random, enormous",
        passes="exactly these are replaced or left out, by name",
        run=broken_images,
    ),
    Row(
        fault="more bad samples than allowed, two ranks",
        passes="the same error at the same step on all ranks",
        run=too_many,
    ),
    Row(
        fault="shards of unequal sizes, of one sample, fewer than ranks",
        passes="equal steps, each sample once; fewer than ranks: refused on every rank",
        run=unequal_shards,
    ),
    Row(
        fault="members with ../, absolute paths, links, devices, pickles",
        passes="nothing written or executed; named",
        run=hostile_shards,
    ),
)
