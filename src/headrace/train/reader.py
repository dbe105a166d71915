"""torch's checkpoint files, read without running code that may be in them.

torch keeps a checkpoint's description as a pickle and loads values that are no tensors with
unrestricted unpickling. A checkpoint is data, so both are read with what they need and no more.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem, WriteItem, WriteItemType

from headrace.core.errors import CheckpointError

_ALLOWED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
            "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )
    ),
}  # fmt: skip


class SafeReader(FileSystemReader):
    """Reads a checkpoint's files from a local folder.

    Args:
        folder: Where they lie.
        names: The committed files: no other is opened.
    """

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        super().__init__(folder)
        self._folder = folder
        self._names = frozenset(names)

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Return the checkpoint's description; torch calls this too."""
        data = (self._folder / ".metadata").read_bytes()
        metadata = _MetadataUnpickler(io.BytesIO(data)).load()
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{self._folder / '.metadata'} describes no checkpoint.")
        for info in (metadata.storage_data or {}).values():
            if info.relative_path not in self._names:
                raise CheckpointError(
                    f"{self._folder / '.metadata'} points at {info.relative_path}, which is no "
                    "file of this checkpoint."
                )
        return metadata


class SafeLoadPlanner(DefaultLoadPlanner):
    """Loads a flat state dict; values that are no tensors are plain ones."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put one value that is no tensor into the state dict; torch calls this."""
        loaded = torch.load(value, weights_only=True)
        self.original_state_dict[read_item.dest_index.fqn] = loaded


class SafeSavePlanner(DefaultSavePlanner):
    """Saves a flat state dict, and refuses what `SafeLoadPlanner` could never load.

    Such a checkpoint would count, push out the older ones, and fail when it is needed.
    """

    def __init__(self) -> None:
        # Of values that all ranks hold, rank 0's are written: with DDP those count, as its
        # buffers are what the other ranks get before each forward pass.
        super().__init__(flatten_state_dict=False, dedup_save_to_lowest_rank=True)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002
        """Return what is written of a value; torch calls this."""
        if write_item.type != WriteItemType.BYTE_IO:
            return super().transform_object(write_item, object)
        try:
            written = super().transform_object(write_item, object)
            written.seek(0)
            torch.load(written, map_location="cpu", weights_only=True)
        except Exception as error:
            place, found = _innermost_unreadable(write_item.index.fqn, object)
            raise CheckpointError(
                f"{place} is a {type(found).__module__}.{type(found).__qualname__}, which cannot "
                "be read back from a checkpoint without running code that may be in it. Give "
                "numbers, texts, tensors, and lists and dicts of them, or keep it out of the "
                "optimizer and the model, in `extra`."
            ) from error
        return written


def _reads_back(value: Any) -> bool:
    written = io.BytesIO()
    try:
        torch.save(value, written)
        written.seek(0)
        torch.load(written, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - a foreign type may raise anything when it is pickled
        return False
    return True


def _innermost_unreadable(place: str, value: Any) -> tuple[str, Any]:
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    for name, part in parts:
        if not _reads_back(part):
            return _innermost_unreadable(f"{place}.{name}", part)
    return place, value


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _ALLOWED:
            raise CheckpointError(
                f"The checkpoint's .metadata asks for {module}.{name}, which no checkpoint needs. "
                "It is damaged or not to be trusted."
            )
        return super().find_class(module, name)
