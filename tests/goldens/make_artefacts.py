"""Makes the stored artefacts of tests/goldens/artefacts: `python tests/goldens/make_artefacts.py`.

They were made once, by the commit named in artefacts/commit.txt, and stay: later versions must open
them. Each folder that is there already is left alone. artefacts/offload is what a rank of it
sent to an offload server, by the module names that it had, and is not made anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ARTEFACTS = HERE / "artefacts"
ROOT = HERE.parents[1]
SAMPLES = 48


def main() -> None:
    """Make what is missing."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools"), str(HERE)]
    for name, make in {
        "images": make_images,
        "dataset": make_dataset,
        "checkpoint": make_checkpoint,
        "cache": make_cache,
        "recorded": make_recorded_runs,
    }.items():
        folder = ARTEFACTS / name
        if not folder.exists():
            make(folder)
    if not (ARTEFACTS / "commit.txt").exists():
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        (ARTEFACTS / "commit.txt").write_text(head.stdout)


def make_images(folder: Path) -> None:
    """Write class folders of small JPEGs."""
    from packed import write_images

    write_images(folder, SAMPLES, classes=3)


def make_dataset(folder: Path) -> None:
    """Pack the images."""
    from headrace.data.shards.pack import pack
    from headrace.data.shards.shard_packer import PackOptions

    pack(str(ARTEFACTS / "images"), str(folder), PackOptions(shard_bytes=12_000))


def make_checkpoint(folder: Path) -> None:
    """Save a model, an optimizer and a loader's state in the middle of an epoch."""
    from stored import checkpoint_parts

    from headrace import Checkpointer

    model, optimizer, loader = checkpoint_parts(ARTEFACTS / "dataset")
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    Checkpointer(str(folder)).save(2, model, optimizer, loader, extra={"note": "artefact"})


def make_cache(folder: Path) -> None:
    """Read the dataset through a block cache."""
    from stored import CountingStore

    from headrace.data.storage.cache.cached_store import CachedStore

    store = CachedStore(CountingStore(ARTEFACTS / "dataset"), folder, 10**8)
    for info in sorted(store.list(), key=lambda each: each.path):
        store.get(info.path)
    store.close()
    shutil.rmtree(folder / "writing", ignore_errors=True)


def make_recorded_runs(folder: Path) -> None:
    """Record two jobs: one process that waits for its data, and two ranks.

    Their script stands in a folder that is gone afterwards, so that a diagnosis finds the same on
    every machine: records, and no source.
    """
    from jobs import clean_environment, headrace

    work = Path(tempfile.gettempdir()) / "headrace-goldens"
    work.mkdir()
    shutil.copy(HERE / "recorded_train.py", work / "train.py")
    for name, flags in {"alone": [], "ranks": ["--nproc-per-node", "2"]}.items():
        subprocess.run(
            headrace("run", "--run-dir", name, *flags, "train.py"),
            cwd=work, env=clean_environment(OMP_NUM_THREADS="1"), check=True,
        )  # fmt: skip
        for leftover in ("run.json.held", "run.json.lock", "report.html"):
            (work / name / leftover).unlink(missing_ok=True)
        shutil.copytree(work / name, folder / name)
    shutil.rmtree(work)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(ROOT / "src"))
    main()
