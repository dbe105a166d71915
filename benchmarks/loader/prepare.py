"""The images of the loader benchmark, in each form that an arm reads."""

from __future__ import annotations

from pathlib import Path

import litdata

from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.transforms.decode import decode_member
from images import make_folder

SHARD_BYTES = 16 << 20


def prepare(folder: Path, count: int) -> None:
    """Make images, shards and LitData's chunks below `folder`, unless they are there."""
    files = make_folder(folder / "images", count)
    # As `headrace data pack` does it; where it was done before, this does nothing.
    options = PackOptions(shard_bytes=SHARD_BYTES, workers=2)
    pack(str(folder / "images"), str(folder / "shards"), options, check=decode_member)
    if not (folder / "chunks" / "index.json").exists():
        litdata.optimize(
            fn=_content,
            inputs=[str(path) for path in files],
            output_dir=str(folder / "chunks"),
            chunk_bytes=SHARD_BYTES,
            num_workers=2,
        )


def keep_in_memory(folder: Path) -> None:
    """Read every file below `folder`, so that the next arm waits for no disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()


def _content(path: str) -> tuple[bytes, int]:
    return Path(path).read_bytes(), int(Path(path).parent.name[-2:])
