"""One arm, in a process of its own: throughput, CPU and memory, as one JSON line.

python benchmarks/loader/measure.py ARM DATA_FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
from arms import ARMS, BATCH, Data, decode_ceiling

WARM_BATCHES, EPOCHS = 8, 2
SHARED = ("/dev/shm/", "memfd:", "/torch_")  # noqa: S108 - names to look for, not to write to


def main() -> None:
    """Measure the arm that the command line names."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    files = sorted(str(path) for path in (folder / "images").rglob("*.jpg"))
    data = Data(files=files, shards=folder / "shards", chunks=folder / "chunks")
    if name == "decode only":
        print(json.dumps({"img_per_s": decode_ceiling(data)}))
        return
    import torch  # noqa: F401 - so that memory before and after is compared with torch loaded

    import headrace.data.loader.dataloader  # noqa: F401 - likewise, for every arm alike

    before = memory()
    loader = ARMS[name](data)
    iterator, done = iter(loader), 0
    for _ in range(WARM_BATCHES):
        next(iterator)
    began, cpu_before, waited = time.perf_counter(), cpu_seconds(), waited_for_disk_s()
    found = None
    for epoch in range(EPOCHS):
        for batch in iterator:
            batch[0][0, 0, 0, 0].item()
            done += len(batch[0])
            if found is None and done >= len(files) // 2:
                pause = time.perf_counter()
                found = memory()
                began += time.perf_counter() - pause
        if epoch + 1 < EPOCHS:
            iterator = iter(loader)
    wall_s, cpu_s = time.perf_counter() - began, cpu_seconds() - cpu_before
    waited = waited_for_disk_s() - waited
    assert found is not None, f"fewer than {BATCH} images"
    print(json.dumps({
        "img_per_s": done / wall_s,
        "cpu_s_per_1000": cpu_s / done * 1000,
        "pss_mb": found["pss"], "pss_above_mb": found["pss"] - before["pss"],
        "real_above_mb": found["real"] - before["real"], "rss_sum_mb": found["rss"],
        "disk_wait_s": waited,
    }))  # fmt: skip
    sys.stdout.flush()
    os._exit(0)  # some peers take long to end their threads


def tree() -> list[psutil.Process]:
    """Return this process and all it started."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def cpu_seconds() -> float:
    """Return user and system seconds of the whole tree so far."""
    times = [process.cpu_times() for process in tree()]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


def waited_for_disk_s() -> float:
    """Return for how long, since the start, all that could run on this machine waited for I/O."""
    full = Path("/proc/pressure/io").read_text(encoding="ascii").splitlines()[1]
    return int(full.rpartition("total=")[2]) / 1e6


def memory() -> dict[str, float]:
    """Return the tree's memory in MB.

    pss: as the kernel counts it. rss: resident sizes added up, pages that are shared counted by
    each. real: pss, and batches in flight that lie in shared files which no process maps just now,
    as those of torch's workers do.
    """
    pss = rss = mapped_shared = 0
    shared_files: dict[tuple[int, int], int] = {}
    for process in tree():
        for region in process.memory_maps(grouped=False):
            pss += region.pss
            rss += region.rss
            if any(mark in region.path for mark in SHARED):
                mapped_shared += region.pss
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                target, status = str(descriptor.readlink()), descriptor.stat()
            except FileNotFoundError:
                continue
            if any(mark in target for mark in SHARED):
                shared_files[status.st_dev, status.st_ino] = status.st_blocks * 512
    real = pss - mapped_shared + sum(shared_files.values())
    return {"pss": pss / 1e6, "rss": rss / 1e6, "real": real / 1e6}


if __name__ == "__main__":
    main()
