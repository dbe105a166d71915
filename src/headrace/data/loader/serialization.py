"""The serialised form of a batch: arrays in an arena, and a pickled structure around them.

A batch is any Python object. Its arrays and tensors are written into an arena (a slot of shared
memory, or plain memory when the work is done inline) and its structure is pickled with a reference
in the place of each. Pickle carries our own objects between our own processes; data from a dataset
is never unpickled.

This module works without torch. A worker that never imports torch makes batches of NumPy arrays,
marked to become tensors, and the training process, which has torch, turns them into tensors.

In a worker the script is not `__main__`; its classes were pickled by value. Sent back by value they
would replace the training process's own with each batch, and undo what the script has set on them
since. So they are pickled by name on the way back.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, Protocol, final

import cloudpickle
import numpy as np
from numpy.typing import NDArray

_MAIN = "__main__"


def script_attribute(name: str) -> Any:
    """Return the script's object of a qualified name; raises AttributeError."""
    return reduce(getattr, name.split("."), sys.modules[_MAIN])


class ScriptPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles a worker's results for the training process."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is pickled: the script's definitions by name, all else as usual."""
        if getattr(obj, "__module__", None) == _MAIN and (
            isinstance(obj, type) or (callable(obj) and hasattr(obj, "__code__"))
        ):
            name = getattr(obj, "__qualname__", "<")
            if "<" not in name:
                return script_attribute, (name,)
        return super().reducer_override(obj)


def pickle_for_script(obj: object) -> bytes:
    """Return `obj` pickled for the training process."""
    buffer = io.BytesIO()
    ScriptPickler(buffer).dump(obj)
    return buffer.getvalue()


Kind = Literal["tensor", "array"]

ALIGNMENT = 64  # bytes: one cache line, and what vector instructions like best


class Arena(Protocol):
    """Memory that a batch's arrays are placed in, one after the other."""

    def reserve(self, size_bytes: int) -> int:
        """Return the offset of `size_bytes` new bytes, aligned to 64."""

    def write(self, offset: int, start: int, data: NDArray[Any] | bytes) -> None:
        """Copy bytes to `start` of the range reserved at `offset`."""


@final
class PlacedArray:
    """An array that is in the arena already, which the reader makes a tensor or a NumPy array."""

    __slots__ = ("dtype", "kind", "offset", "shape")

    def __init__(self, kind: Kind, dtype: str, shape: tuple[int, ...], offset: int) -> None:
        self.kind, self.shape = kind, shape
        self.dtype = dtype  # a NumPy dtype's string, or "torch:NAME" for one that NumPy lacks
        self.offset = offset  # in the arena, in bytes


def place_array(
    arena: Arena, kind: Kind, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> PlacedArray:
    """Reserve room for an array of that dtype and shape; the caller writes its bytes."""
    size_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return PlacedArray(kind, dtype.str, shape, arena.reserve(size_bytes))


def encode_batch(batch: object, arena: Arena) -> bytes:
    """Write the arrays and tensors of `batch` into `arena`; return its pickled structure.

    Raises PicklingError, TypeError or AttributeError for what cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Encoder(buffer, arena).dump(batch)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Lambdas and local classes, for example, are pickled by value.
        buffer = io.BytesIO()
        _CloudEncoder(buffer, arena).dump(batch)
    return buffer.getvalue()


def decode_batch(structure: bytes, read: Callable[[PlacedArray], Any]) -> Any:
    """Rebuild a batch from its structure; `read` returns the object for each placed array."""
    return _Decoder(structure, read).load()


def _placed_reference(obj: object, arena: Arena) -> tuple[str, str, tuple[int, ...], int] | None:
    """Return the reference that replaces `obj` in the structure, or None for a plain object."""
    if type(obj) is np.ndarray and obj.dtype.kind in "biufcSU" and obj.size:
        obj = _copy_in(arena, "array", obj)
    elif (torch := sys.modules.get("torch")) is not None and type(obj) is torch.Tensor:
        obj = _tensor_in(arena, obj, torch)
    if type(obj) is PlacedArray:
        return (obj.kind, obj.dtype, obj.shape, obj.offset)
    return None


def _copy_in(arena: Arena, kind: Kind, array: NDArray[Any]) -> PlacedArray:
    placed = place_array(arena, kind, array.dtype, array.shape)
    arena.write(placed.offset, 0, array)
    return placed


def _tensor_in(arena: Arena, tensor: Any, torch: Any) -> Any:
    plain = (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.numel() > 0
    )
    if not plain:
        return tensor  # pickled as torch does it
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype is torch.bfloat16 or "float8" in str(tensor.dtype):
        bits = tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.uint8)
        placed = _copy_in(arena, "tensor", bits.numpy())
        dtype = str(tensor.dtype).replace("torch.", "torch:")
        return PlacedArray("tensor", dtype, placed.shape, placed.offset)
    return _copy_in(arena, "tensor", tensor.numpy())


class _PlacesArrays:
    """A pickler that writes arrays and tensors into an arena."""

    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)  # type: ignore[call-arg]  # a pickler's
        self._arena = arena

    def persistent_id(self, obj: object) -> tuple[str, str, tuple[int, ...], int] | None:
        return _placed_reference(obj, self._arena)


class _Encoder(_PlacesArrays, pickle.Pickler):
    pass


class _CloudEncoder(_PlacesArrays, ScriptPickler):
    pass


class _Decoder(pickle.Unpickler):
    def __init__(self, structure: bytes, read: Callable[[PlacedArray], Any]) -> None:
        super().__init__(io.BytesIO(structure))
        self._read = read

    def persistent_load(self, pid: Any) -> Any:
        return self._read(PlacedArray(*pid))


# A rank sends its dataset and each batch spec to workers and to offload servers as pickles, which
# name classes by their modules. A server may be newer than the rank: here are the names of modules
# and classes in earlier releases.
_LOADER, _STORAGE, _TRANSFORMS = (
    f"headrace.data.{package}" for package in ("loader", "storage", "transforms")
)
_MODULES = {
    f"{_LOADER}.making": f"{_LOADER}.batch_builder",
    f"{_LOADER}.dataset": f"{_LOADER}.shard_dataset",
    f"{_LOADER}.home": f"{_LOADER}.serialization",
    f"{_LOADER}.workforce": f"{_LOADER}.workers.pool",
    f"{_STORAGE}.cached": f"{_STORAGE}.cache.cached_store",
    f"{_STORAGE}.client": f"{_STORAGE}.remote_store",
    f"{_STORAGE}.config": f"{_STORAGE}.store",
    f"{_STORAGE}.direct": f"{_STORAGE}.client.direct",
    f"{_STORAGE}.helper_client": f"{_STORAGE}.client.subprocess_client",
    f"{_STORAGE}.local": f"{_STORAGE}.local_stores",
    f"{_STORAGE}.memory": f"{_STORAGE}.local_stores",
    f"{_STORAGE}.remote": f"{_STORAGE}.remote_store",
    f"{_STORAGE}.retry": f"{_STORAGE}.client.retries",
    f"{_STORAGE}.settings": f"{_STORAGE}.client.credentials",
    f"{_TRANSFORMS}.color": f"{_TRANSFORMS}.augmentation",
    f"{_TRANSFORMS}.crop": f"{_TRANSFORMS}.augmentation",
    f"{_TRANSFORMS}.image_window": f"{_TRANSFORMS}.resize",
    f"{_TRANSFORMS}.joint": f"{_TRANSFORMS}.augmentation",
    f"{_TRANSFORMS}.recode": f"{_TRANSFORMS}.resize",
    "headrace.data.shards.index": "headrace.data.shards.shard_index",
    "pathlib._local": "pathlib",  # of a rank with Python 3.13
}
_NAMES = {"Order": "BatchSpec", "Recipe": "LoaderSpec", "of_main": "script_attribute"}


def unpickle(content: bytes) -> Any:
    """Return what a rank has pickled, of this release or of an earlier one."""
    return _RankUnpickler(io.BytesIO(content)).load()


class _RankUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES:
            module, name = _MODULES[module], _NAMES.get(name, name)
        return super().find_class(module, name)
