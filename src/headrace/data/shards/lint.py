"""Check every byte of a dataset against its index and manifest, and name each fault."""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c

from headrace.core.errors import DatasetError, NotFoundError
from headrace.data.shards.faults import Fault
from headrace.data.shards.index import ShardIndex, open_index, read_manifest_bytes
from headrace.data.shards.linting.objects import lint_objects
from headrace.data.shards.linting.tars import lint_tars
from headrace.data.shards.manifest import INDEX_NAME, MANIFEST_NAME, Manifest
from headrace.data.shards.progress import Progress, Tally
from headrace.data.shards.rows.blocks import WholeBlocks, kinds_of
from headrace.data.storage import Store, open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """What was checked, and what is wrong.

    Attributes:
        url: The dataset.
        num_shards: Shards checked; for loose objects, samples.
        num_samples: Samples that the index names.
        num_members: Their files.
        read_bytes: Bytes read.
        faults: Everything wrong, in the order of the shards.
    """

    url: str
    num_shards: int
    num_samples: int
    num_members: int
    read_bytes: int
    faults: tuple[Fault, ...]


def lint(url: str, *, progress: Progress | None = None) -> LintReport:
    """Check a dataset: manifest, index, every shard, every member's checksum.

    Raises:
        DatasetError: There is no dataset.
        StorageError: The store fails; an object that is missing or refused is a fault instead.
    """
    store = open_store(url)
    data = read_manifest_bytes(store)
    try:
        manifest = Manifest.from_json(data, store.url)
    except DatasetError as error:
        return _report(store.url, None, [Fault("manifest", MANIFEST_NAME, str(error))])
    faults: list[Fault] = []
    index = _checked_index(store, manifest, faults)
    if index is None:
        return _report(store.url, manifest, faults)
    tally = Tally(progress or (lambda _: None), "checking", of_samples=manifest.num_samples)
    check = lint_tars if manifest.layout == "tar" else lint_objects
    faults.extend(check(open_store(index.data_url), index, tally))
    return _report(store.url, manifest, faults, tally.read_bytes)


def _checked_index(store: Store, manifest: Manifest, faults: list[Fault]) -> ShardIndex | None:
    """Return the index, or None, with a fault, where members cannot be compared with it."""
    try:
        data = bytes(store.get(INDEX_NAME))
        blocks = WholeBlocks(memoryview(data), manifest, f"{store.url}/{INDEX_NAME}")
    except (NotFoundError, DatasetError) as error:
        faults.append(Fault("index", INDEX_NAME, f"{error} No member could be checked."))
        return None
    if google_crc32c.value(data) != manifest.index_crc32c:
        faults.append(
            Fault(
                "checksum", INDEX_NAME, f"checksum differs from {MANIFEST_NAME}'s: it is damaged."
            )
        )
    kinds = kinds_of(manifest)
    damaged = False
    for number, shard in enumerate(manifest.shards):
        try:
            same = blocks.rows(number).digest(kinds) == shard.digest
        except DatasetError:
            same = False
        if not same:
            what = f"the rows of {shard.name or f'group {number}'} are not those of the manifest."
            faults.append(Fault("index", INDEX_NAME, what))
            damaged = True
    return None if damaged else ShardIndex(store.url, manifest, blocks, (open_index, (store.url,)))


def _report(
    url: str, manifest: Manifest | None, faults: list[Fault], read_bytes: int = 0
) -> LintReport:
    loose = manifest is not None and manifest.layout == "objects"
    samples = 0 if manifest is None else manifest.num_samples
    return LintReport(
        url=url,
        num_shards=0 if manifest is None else samples if loose else len(manifest.shards),
        num_samples=samples,
        num_members=0 if manifest is None else manifest.num_members,
        read_bytes=read_bytes,
        faults=tuple(faults),
    )
