"""What a packing worker does: one shard and its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from headrace.core.errors import BadSampleError, CredentialsError
from headrace.data.shards.faults import BadFile
from headrace.data.shards.names import refusal
from headrace.data.shards.options import Check, Recode
from headrace.data.shards.packing.part import Part
from headrace.data.shards.packing.source_reader import UNREADABLE, SourceReader
from headrace.data.shards.packing.workers import Report
from headrace.data.shards.sources.samples import SourceFile, SourceSample
from headrace.data.shards.tar.writer import TarWriter, check_size
from headrace.data.shards.window import result_of
from headrace.data.storage import open_store, safe_url

PACKING_FOLDER = ".packing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """One shard to pack.

    Attributes:
        number: Its number.
        samples: What goes into it, in order.
    """

    number: int
    samples: Sequence[SourceSample]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackJob:
    """Packs shards.

    Attributes:
        source_url: What the samples' relative paths lie below.
        destination_url: Where shards go.
        recode: Changes a member's content; None to keep it.
        check: Raises BadSampleError for a member that cannot be used; None to look at none.
        key: The packing's; see PackingPlan.
    """

    source_url: str
    destination_url: str
    recode: Recode | None
    check: Check | None
    key: str

    def name(self, task: ShardTask) -> str:
        """Return the shard's place."""
        return f"{self.destination_url}/{shard_name(task.number)}"

    def run(self, task: ShardTask, report: Report) -> tuple[BadFile, ...]:
        """Write the shard, then the record that vouches for it; return what was left out.

        Raises:
            StorageError: The source or the destination fails.
        """
        store = open_store(self.destination_url)
        writer = TarWriter()
        reader = SourceReader(self.source_url)
        content = _Content(reader, self.recode, self.check, report)
        try:
            store.put(shard_name(task.number), writer.pieces(content.samples(task.samples)))
        finally:
            reader.close()
        if len(writer.rows) == 0:
            store.delete(shard_name(task.number))
        part = Part.build(
            writer.rows,
            number=task.number,
            name=shard_name(task.number),
            size_bytes=writer.size_bytes,
            recoded=content.recoded,
            bad=tuple(content.bad),
            key=self.key,
        )
        store.put(part_name(task.number), part.to_bytes())
        return part.bad


def shard_name(number: int) -> str:
    """Return a shard's path."""
    return f"{number:06d}.tar"


def part_name(number: int) -> str:
    """Return the path of a finished shard's record."""
    return f"{PACKING_FOLDER}/{number:06d}.arrow"


def load(
    file: SourceFile, data: bytes, recode: Recode | None, check: Check | None
) -> tuple[bytes, bool]:
    """Check and recode one file; return what to keep, and whether it was changed.

    Raises:
        BadSampleError: It cannot be used.
    """
    if not file.extension:
        raise BadSampleError("Its name has no extension, which would say what it holds.")
    reason = refusal(f"x.{file.extension}")
    if reason is not None:
        raise BadSampleError(f"Its name is refused: {reason}.")
    role = f"mask.{file.extension}" if file.is_mask else file.extension
    kept = data if recode is None else recode(role, data)
    changed = kept != data
    if check is not None and not changed:  # what recode changed, it has decoded
        check(role, data)
    check_size(kept)
    return kept, changed


class _Content:
    """The members of samples, bad ones left out and noted."""

    def __init__(
        self, reader: SourceReader, recode: Recode | None, check: Check | None, report: Report
    ) -> None:
        self.bad: list[BadFile] = []
        self.recoded = 0
        self._reader = reader
        self._recode = recode
        self._check = check
        self._report = report

    def samples(
        self, samples: Sequence[SourceSample]
    ) -> Iterator[tuple[str, Sequence[tuple[str, bytes]]]]:
        for sample, contents in self._reader.read(samples):
            members = self._members(sample, contents)
            if members is not None:
                yield sample.key, [*members, *sample.values]

    def _members(
        self, sample: SourceSample, contents: Sequence[Future[bytes]]
    ) -> list[tuple[str, bytes]] | None:
        members: list[tuple[str, bytes]] = []
        read_bytes, recoded, bad = 0, 0, False
        for file, content in zip(sample.files, contents, strict=True):
            try:
                data = result_of(content)
                read_bytes += len(data)
                kept, changed = load(file, data, self._recode, self._check)
            except CredentialsError:
                raise
            except (BadSampleError, *UNREADABLE) as error:
                self.bad.append(BadFile(file=safe_url(file.path), reason=str(error)))
                bad = True
                continue
            members.append((file.extension, kept))
            recoded += changed
        self._report(1, read_bytes, int(bad))
        if bad:
            return None
        self.recoded += recoded
        return members
