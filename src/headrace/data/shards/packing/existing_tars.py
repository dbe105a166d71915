"""Tars that are there become the shards of a dataset."""

from __future__ import annotations

from headrace.core.errors import DatasetError
from headrace.data.shards.faults import Fault, list_faults
from headrace.data.shards.manifest import Source
from headrace.data.shards.packing.assemble import About
from headrace.data.shards.packing.part import Part
from headrace.data.shards.packing.part_spool import PartSpool
from headrace.data.shards.progress import Progress, Tally
from headrace.data.shards.sources.listing import Ignored
from headrace.data.shards.sources.samples import listing_hash
from headrace.data.shards.tar.samples import index_tar
from headrace.data.shards.window import windowed
from headrace.data.storage import Store

TARS_AT_ONCE = 4


def index_tars(
    store: Store,
    target_url: str,
    spool: PartSpool,
    tell: Progress,
    classes: tuple[str, ...] = (),
) -> About:
    """Read all tars of a store into `spool`, in the order of their paths.

    Raises:
        DatasetError: Some are damaged or hold what is refused; every fault is named.
        StorageError: One cannot be read.
    """
    ignored, state, tars = Ignored(), listing_hash(), []
    for info in store.list():
        if info.path.endswith(".tar"):
            tars.append(info)
            state.update(f"{info.path}\0{info.size_bytes}\0{info.etag}\n".encode())
        else:
            ignored.add(info.path)
    tally = Tally(tell, "reading", of_samples=0)
    faults: list[Fault] = []
    for number, found in enumerate(
        windowed(lambda info: index_tar(store, info.path, info.size_bytes), tars, TARS_AT_ONCE)
    ):
        faults.extend(found.faults)
        for name in found.ignored:
            ignored.add(f"{found.path}:{name}")
        spool.add(
            Part.build(found.rows, number=number, name=found.path, size_bytes=found.size_bytes)
        )
        tally.add(len(found.rows), found.size_bytes, 0)
    if faults:
        raise DatasetError(
            f"{store.url}: {len(faults)} faults in its tars:\n{list_faults(faults)}\n"
            "Write those tars again, or move them away, then index again."
        )
    return About(
        layout="tar",
        classes=classes,
        data_url="" if store.url == target_url else store.url,
        source=Source(
            kind="tars",
            url=store.url,
            num_files=len(tars),
            size_bytes=sum(info.size_bytes for info in tars),
            num_ignored=ignored.count,
            ignored=tuple(ignored.examples),
            listing=state.hexdigest(),
        ),
    )
