"""Loose objects become samples, each a shard of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from headrace.core.errors import BadSampleError, CredentialsError
from headrace.data.shards.faults import BadFile
from headrace.data.shards.members import checksum
from headrace.data.shards.packing.assemble import About
from headrace.data.shards.packing.part import Part
from headrace.data.shards.packing.part_spool import PartSpool
from headrace.data.shards.packing.source_reader import UNREADABLE, SourceReader
from headrace.data.shards.progress import Progress, Tally
from headrace.data.shards.rows.builder import RowBuilder
from headrace.data.shards.rows.columns import MemberKind
from headrace.data.shards.sources.samples import (
    FileColumn,
    SampleTable,
    SourceSample,
    samples_of,
    texts,
)
from headrace.data.shards.tar.writer import check_size
from headrace.data.shards.window import result_of

GROUP_SAMPLES = 8192
"""Samples of one record batch: about 0.5 MB, one request where the index is read by range."""


def index_objects(table: SampleTable, target_url: str, spool: PartSpool, tell: Progress) -> About:
    """Read all objects of a table into `spool`.

    Raises:
        StorageError: The store fails. Objects that cannot be read or are empty are noted as bad.
    """
    reader = SourceReader(table.url)
    tally = Tally(tell, "reading", of_samples=len(table))
    templates: dict[str, tuple[str, ...]] = {}
    try:
        for number, first in enumerate(range(0, len(table), GROUP_SAMPLES)):
            rows = np.arange(first, min(first + GROUP_SAMPLES, len(table)), dtype=np.int64)
            group = _Group(table.take(rows), tally)
            group.read(reader)
            templates |= group.templates
            spool.add(
                Part.build(
                    group.rows, number=number, size_bytes=group.size_bytes, bad=tuple(group.bad)
                )
            )
    finally:
        reader.close()
    return About(
        layout="objects",
        source=table.source,
        classes=table.classes,
        data_url="" if table.url == target_url else table.url,
        templates=templates,
    )


class _Group:
    """The samples of one record batch."""

    def __init__(self, table: SampleTable, tally: Tally) -> None:
        self.rows = RowBuilder()
        self.bad: list[BadFile] = []
        self.size_bytes = 0
        self.templates: dict[str, tuple[str, ...]] = {}
        self._table = table
        self._tally = tally
        self._columns = [table.images] if table.masks is None else [table.images, table.masks]

    def read(self, reader: SourceReader) -> None:
        """Read all files and note their sizes and checksums."""
        stems = texts(self._table.stems)
        samples = samples_of(self._table)
        for row, (sample, contents) in enumerate(reader.read(samples)):
            members = self._members(row, sample, contents)
            if members is not None:
                self.rows.add(stems[row], members)  # the very stem: it gives the path back

    def _members(
        self, row: int, sample: SourceSample, contents: Sequence[Future[bytes]]
    ) -> Mapping[str, tuple[MemberKind, Sequence[int]]] | None:
        members: dict[str, tuple[MemberKind, Sequence[int]]] = {}
        read_bytes, bad = 0, False
        for file, column, content in zip(sample.files, self._columns, contents, strict=True):
            try:
                data = result_of(content)
                _refuse_empty(data)
                check_size(data)
            except CredentialsError:
                raise
            except (BadSampleError, *UNREADABLE) as error:
                self.bad.append(BadFile(file=file.path, reason=str(error)))
                bad = True
                continue
            read_bytes += len(data)
            self.templates[file.extension] = column.templates
            members[file.extension] = (
                "object",
                (_template(column, row), len(data), checksum(data)),
            )
        self._tally.add(1, read_bytes, int(bad))
        if bad:
            return None
        self.size_bytes += read_bytes
        if self._table.labels is not None:
            members["cls"] = "value", (int(self._table.labels[row]),)
        return members


def _template(column: FileColumn, row: int) -> int:
    return 0 if column.template_ids is None else int(column.template_ids[row])


def _refuse_empty(data: bytes) -> None:
    if not data:
        raise BadSampleError("The object is empty: 0 bytes.")
