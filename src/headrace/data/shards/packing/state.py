"""What lies in a destination while it is being packed, and who may go on with it.

.packing/plan.json      which source and options, and how the samples were cut
.packing/000000.arrow   the record of a finished shard, written after the shard
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import DatasetError, NotFoundError, UsageError
from headrace.data.shards.manifest import INDEX_NAME, MANIFEST_NAME, Manifest
from headrace.data.shards.packing.part import Part
from headrace.data.shards.packing.scale import Scale
from headrace.data.shards.packing.shard import PACKING_FOLDER, part_name, shard_name
from headrace.data.storage import Store
from headrace.data.storage.atomic import clear_litter
from headrace.data.storage.urls import parse_url

_PLAN_NAME = f"{PACKING_FOLDER}/plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """What a packing is keyed by.

    Attributes:
        key: A hash of the source's listing and of the options that decide the bytes.
        source_url: For messages.
        scale: Measured once, so that going on cuts the samples as before.
    """

    key: str
    source_url: str
    scale: Scale


def packing_key(listing: str, described: Mapping[str, Any]) -> str:
    """Return the key of a packing."""
    return hashlib.sha256(json.dumps([listing, described], sort_keys=True).encode()).hexdigest()


def finished_manifest(store: Store, described: Mapping[str, Any], listing: str) -> Manifest | None:
    """Return the manifest where this very packing was finished before, None where none was.

    Raises:
        DatasetError: The destination holds another dataset.
    """
    try:
        data = store.get(MANIFEST_NAME)
    except NotFoundError:
        return None
    manifest = Manifest.from_json(data, store.url)
    if dict(manifest.options) != dict(described) or manifest.source.listing != listing:
        raise DatasetError(
            f"{store.url} holds a dataset already, of other options or another source "
            f"({manifest.num_samples} samples of {manifest.source.url}). Choose another "
            "destination, or delete that one first."
        )
    return manifest


def resume_plan(store: Store, key: str) -> PackingPlan | None:
    """Return the plan of an unfinished packing with this key, None where the destination is free.

    Raises:
        DatasetError: It holds an unfinished packing of something else, or other files.
    """
    try:
        content = json.loads(bytes(store.get(_PLAN_NAME)))
        plan = PackingPlan(
            key=content["key"], source_url=content["source_url"], scale=Scale(**content["scale"])
        )
    except NotFoundError:
        _refuse_foreign(store)
        return None
    except (ValueError, KeyError, TypeError):
        raise DatasetError(
            f"{store.url}/{_PLAN_NAME} is damaged. Delete the destination and pack again."
        ) from None
    if plan.key != key:
        raise DatasetError(
            f"{store.url} holds an unfinished packing of other options, or its source has changed "
            f"({plan.source_url}). Run it again as it was, choose another destination, or delete "
            "what is there."
        )
    return plan


def claim(store: Store, plan: PackingPlan) -> PackingPlan:
    """Claim the destination; return the plan to go by, which another one's claim may have set.

    Raises:
        DatasetError: A packing of something else, begun at the same moment, has claimed it.
    """
    scale = {"ratio": plan.scale.ratio, "mean_bytes": plan.scale.mean_bytes}
    content = {"key": plan.key, "source_url": plan.source_url, "scale": scale}
    store.create(_PLAN_NAME, json.dumps(content).encode())
    # Read back, whatever the answer was: it may have been lost, or the server has no conditions.
    return resume_plan(store, plan.key) or plan


def refuse_foreign_parts(parts: Iterable[Part], key: str, url: str) -> Iterator[Part]:
    """Yield parts; raises DatasetError at one that another packing wrote.

    That happens where two began at once and the store let both claim the destination.
    """
    for part in parts:
        if part.key not in {key, ""}:  # "": of a version that did not write it
            raise DatasetError(
                f"{url}: {part_name(part.number)} is of another packing to the same place. Delete "
                "what is there and pack again, each source to a destination of its own."
            )
        yield part


def finished_shards(store: Store, count: int) -> set[int]:
    """Return the numbers of the shards that need not be packed again."""
    names = {info.path for info in store.list(PACKING_FOLDER)}
    return {number for number in range(count) if part_name(number) in names}


def forget_shards(store: Store, numbers: Iterable[int]) -> None:
    """Remove the records of some shards, so that the next packing makes them anew."""
    for number in numbers:
        store.delete(part_name(number))


def remove_state(store: Store) -> None:
    """Remove the records: the manifest now says it all. The plan goes last."""
    for info in store.list(PACKING_FOLDER):
        if info.path != _PLAN_NAME:
            store.delete(info.path)
    store.delete(_PLAN_NAME)
    location = parse_url(store.url)
    if location.kind == "local":  # only there are folders things of their own
        _tidy(Path(location.prefix))


def _tidy(folder: Path) -> None:
    """Remove what a killed packing left half-written, and the folder of the records."""
    for place in (folder, folder / PACKING_FOLDER):
        clear_litter(place)
    with suppress(OSError):
        (folder / PACKING_FOLDER).rmdir()


def refuse_overlap(source_url: str, destination_url: str) -> None:
    """Raise UsageError where the destination lies in the source: shards are no source."""
    if f"{destination_url}/".startswith(f"{source_url.rstrip('/')}/"):
        raise UsageError(
            f"The destination {destination_url} lies within the source {source_url}. Choose a "
            "folder beside it."
        )
    if destination_url.startswith("memory://"):
        raise UsageError("memory:// lives in one process; packing uses several. Use a folder.")


def _refuse_foreign(store: Store) -> None:
    first = next(store.list(), None)
    if first is not None:
        raise DatasetError(
            f"{store.url} is not empty: it holds {first.path}, which no packing of this source "
            f"wrote. Shards are named {shard_name(0)} and so on, beside {INDEX_NAME}; choose an "
            "empty destination."
        )
