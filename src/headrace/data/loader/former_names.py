"""Classes under the module names of earlier releases, which a rank of such a release sends.

A rank sends its dataset and each batch's specification to workers and to offload servers as
pickles, which name classes by their modules. An offload server may be newer than the rank.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

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
    f"{_TRANSFORMS}.joint": f"{_TRANSFORMS}.augmentation",
    f"{_TRANSFORMS}.recode": f"{_TRANSFORMS}.resize",
    "headrace.data.shards.index": "headrace.data.shards.shard_index",
}
_NAMES = {"Order": "BatchSpec", "Recipe": "LoaderSpec", "of_main": "script_attribute"}


def unpickle(content: bytes) -> Any:
    """Return what a rank has pickled, of this release or of an earlier one."""
    return _RankUnpickler(io.BytesIO(content)).load()


class _RankUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class by its name of today where it is a former one."""
        if module in _MODULES:
            module, name = _MODULES[module], _NAMES.get(name, name)
        return super().find_class(module, name)
