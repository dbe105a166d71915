"""Index tars or loose objects where they lie: nothing is copied, every byte is read once."""

from __future__ import annotations

import tempfile
from itertools import chain
from pathlib import Path

from headrace.core.errors import DatasetError, NotFoundError, UsageError
from headrace.data.shards.manifest import INDEX_NAME, MANIFEST_NAME
from headrace.data.shards.names import extension_of
from headrace.data.shards.pack import PackReport
from headrace.data.shards.packing.assemble import assemble, summarise
from headrace.data.shards.packing.budget import check_budget
from headrace.data.shards.packing.existing_tars import index_tars
from headrace.data.shards.packing.loose_objects import index_objects
from headrace.data.shards.packing.part_spool import PartSpool
from headrace.data.shards.packing.shard import PACKING_FOLDER
from headrace.data.shards.progress import PackProgress, Progress, listing
from headrace.data.shards.sources.detect import SourceOptions, list_source
from headrace.data.shards.sources.samples import IMAGE_EXTENSIONS
from headrace.data.shards.sources.tables import TABLE_SUFFIXES
from headrace.data.storage import Store, open_store

_PROBE_NAME = ".headrace-write-test"


def index_in_place(
    url: str,
    *,
    destination: str | None = None,
    source: SourceOptions | None = None,
    max_bad: int = 0,
    progress: Progress | None = None,
) -> PackReport:
    """Make a dataset of what lies at `url` by writing an index and a manifest.

    WebDataset tars stay shards as they are. A loose object becomes a shard of its own: class
    folders and pairs are told as in packing.

    Args:
        url: The folder.
        destination: Where index and manifest go, if not into the folder itself (which may be
            someone else's, and read-only).
        source: How to read loose objects.
        max_bad: How many unreadable or empty objects may be left out.
        progress: Called as it goes on.

    Raises:
        DatasetError: Nothing to index, a dataset is there already, or faults of tars: all named.
        TooManyBadSamplesError: More unreadable objects than `max_bad`; all are named.
        StorageError: It cannot be read or written.
    """
    tell = progress or (lambda _: None)
    options = source or SourceOptions()
    store, target = open_store(url), open_store(destination or url)
    if store.url.lower().endswith(TABLE_SUFFIXES):
        raise UsageError(f"{store.url} is a table. Pack it: `headrace data pack`.")
    holds_tars = _holds_tars(store)
    _refuse_used(target)
    listed = listing(tell)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        spool = PartSpool(Path(folder))
        if options.image_glob is None and holds_tars:
            if options.split is not None:
                raise UsageError(f"{store.url} holds tars: give the split's own URL, not --split.")
            about = index_tars(store, target.url, spool, tell, options.classes)
        else:
            about = index_objects(list_source(url, options, listed), target.url, spool, tell)
        summary = summarise(spool.parts())
        check_budget(summary.bad, max_bad, store.url, complete=True)
        tell(PackProgress(stage="indexing"))
        manifest = assemble(target, summary, spool.parts, about)
    return PackReport(url=target.url, manifest=manifest)


def _refuse_used(target: Store) -> None:
    """Refuse a folder that holds a dataset, or cannot be written: before hours of reading."""
    for name in (MANIFEST_NAME, f"{PACKING_FOLDER}/plan.json"):
        try:
            target.head(name)
        except NotFoundError:
            continue
        what = "a dataset" if name == MANIFEST_NAME else "an unfinished packing"
        raise DatasetError(
            f"{target.url} holds {what} already ({name}). Delete {MANIFEST_NAME} and {INDEX_NAME} "
            "there to index it anew, or choose another place with --to."
            if name == MANIFEST_NAME
            else f"{target.url} holds {what} ({name}). Finish it by running its `headrace data "
            "pack` again."
        )
    target.put(_PROBE_NAME, b"")
    target.delete(_PROBE_NAME)


def _holds_tars(store: Store) -> bool:
    """Tell by the first tar or image; raises DatasetError where there is nothing at all."""
    found = store.list()
    first = next(found, None)
    if first is None:
        raise DatasetError(f"{store.url} holds nothing, or does not exist. Check the URL.")
    for info in chain([first], found):
        if info.path.endswith(".tar"):
            return True
        if extension_of(info.path) in IMAGE_EXTENSIONS:
            return False
    return False
