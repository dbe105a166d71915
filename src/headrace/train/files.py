"""A checkpoint's files on their way to a store and back, each with its checksum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c

from headrace.core.errors import CheckpointError, NotFoundError
from headrace.data.storage import Store
from headrace.train.commit import SavedFile

_PIECE_BYTES = 32 * 2**20


def own_files(folder: Path, rank: int) -> list[Path]:
    """Return the files that a rank wrote into `folder`, and drop those it left empty.

    torch names a rank's files __<rank>_<number>.distcp; rank 0 writes .metadata besides. A rank
    whose tensors were all written by others leaves an empty file.
    """
    found = sorted(folder.glob(f"__{rank}_*"))
    for file in found:
        if file.stat().st_size == 0:
            file.unlink()
    kept = [file for file in found if file.exists()]
    return [*kept, folder / ".metadata"] if rank == 0 else kept


def describe(file: Path) -> SavedFile:
    """Return a local file's name, size and checksum."""
    crc32c = size_bytes = 0
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            crc32c = google_crc32c.extend(crc32c, piece)
            size_bytes += len(piece)
    return SavedFile(name=file.name, size_bytes=size_bytes, crc32c=crc32c)


def upload(files: Sequence[Path], store: Store, folder: str) -> None:
    """Put local files below `folder` of a store."""
    for file in files:
        store.put(f"{folder}/{file.name}", file)


def fetch(saved: SavedFile, store: Store, folder: str, destination: Path | None) -> None:
    """Read a checkpoint's file, verify it, and keep it in `destination` unless that is None.

    Raises:
        CheckpointError: It is missing, or its size or checksum is not as committed.
        StorageError: The store does not give it.
    """
    path = f"{folder}/{saved.name}"
    crc32c = 0
    try:
        if store.head(path).size_bytes != saved.size_bytes:
            raise _damaged(
                store, path, f"it has not the {saved.size_bytes} bytes it was saved with"
            )
        if destination is None:
            for piece in _pieces(saved, store, path):
                crc32c = google_crc32c.extend(crc32c, piece)
        else:
            with (destination / saved.name).open("wb") as kept:
                for piece in _pieces(saved, store, path):
                    crc32c = google_crc32c.extend(crc32c, piece)
                    kept.write(piece)
    except NotFoundError as error:
        raise _damaged(store, path, "it is missing") from error
    if crc32c != saved.crc32c:
        raise _damaged(store, path, "its checksum differs from the one it was saved with")


def _pieces(saved: SavedFile, store: Store, path: str) -> Iterator[bytes]:
    for start in range(0, saved.size_bytes, _PIECE_BYTES):
        yield bytes(store.get_range(path, start, min(_PIECE_BYTES, saved.size_bytes - start)))


def _damaged(store: Store, path: str, what: str) -> CheckpointError:
    step = path.partition("/")[0]
    return CheckpointError(
        f"The checkpoint {store.url}/{step} is damaged: {path.partition('/')[2]}: {what}. Delete "
        f"the folder {step} to go on from the checkpoint before it."
    )
