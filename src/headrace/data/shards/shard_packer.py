"""The options of packing, the reader of source files, and the packer of one shard."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from headrace.core.errors import (
    BadSampleError,
    CorruptError,
    CredentialsError,
    DeniedError,
    ForkedClientError,
    NotFoundError,
    StorageError,
    UsageError,
)
from headrace.data.image_files import (
    IMAGE_EXTENSIONS,
    check_pair_orientation,
    extension_by_content,
    read_header,
    read_orientation,
)
from headrace.data.shards.members import refusal
from headrace.data.shards.reports import BadFile
from headrace.data.shards.shard_records import ShardRecord
from headrace.data.shards.sources.sample_table import SourceFile, SourceSample
from headrace.data.shards.sources.source_kinds import SourceOptions
from headrace.data.shards.tar import TarWriter, check_size
from headrace.data.shards.task_pool import ReportCallback, wait_for_result
from headrace.data.storage import Store, open_store, parse_url, safe_url, split_url
from headrace.data.storage.urls import check_path

RecodeFunction = Callable[[str, bytes], bytes]
"""Takes a member's extension ("jpg", "mask.png") and content, returns the content to store."""

CheckFunction = Callable[[str, bytes], object]
"""Takes a member's extension and content; raises BadSampleError where it is unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """The options of packing."""

    shard_bytes: int = 128 * 2**20  # about
    workers: int = 1  # processes
    seed: int = 0  # of the order of samples
    keep_order: bool = False  # that of the source (paths sorted; rows of a table) instead
    max_bad: int = 0  # unreadable files that may be left out
    recoding: dict[str, Any] = field(default_factory=dict)  # the recode callable, for the manifest
    source: SourceOptions = field(default_factory=SourceOptions)

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise UsageError(f"--shard-size {self.shard_bytes}: a shard has 1 byte or more.")
        if self.workers < 1:
            raise UsageError(f"--workers {self.workers}: 1 or more processes pack.")
        if self.max_bad < 0:
            raise UsageError(f"--max-bad {self.max_bad}: 0 or more files may be left out.")

    def described(self) -> dict[str, Any]:
        """Return the options that affect the bytes, as the manifest stores them."""
        source = {key: value for key, value in asdict(self.source).items() if value}
        described = {
            "shard_bytes": self.shard_bytes,
            "seed": None if self.keep_order else self.seed,
            "keep_order": self.keep_order,
            **({"recoding": self.recoding} if self.recoding else {}),
            **({"source": source} if source else {}),
        }
        # After a round trip through JSON, so that it compares equal to a manifest's.
        return dict(json.loads(json.dumps(described)))


_THREADS = 16
_AHEAD_BYTES, _AHEAD_SAMPLES = 64 * 2**20, 64
_GUESSED_BYTES = 16 * 2**20  # of a file of unknown size, before any was read
_STORES = 256  # open at once, for tables of URLs in many folders


@contextmanager
def collect_bad_file(path: str, bad: list[BadFile]) -> Iterator[None]:
    """Add a file to `bad` where the block finds it unusable; other errors, the store's, pass."""
    try:
        yield
    except CredentialsError:  # though a DeniedError
        raise
    except (BadSampleError, NotFoundError, DeniedError, CorruptError) as error:
        bad.append(BadFile(file=safe_url(path), reason=str(error)))


@dataclass(slots=True, kw_only=True)
class _SampleAhead:
    """A sample whose files are being read."""

    sample: SourceSample
    contents: list[Future[bytes]]
    size_bytes: int | None  # of its files; None: it is known once they are read


class SourceReader:
    """A reader of one source's files; relative paths are below `url`."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self._stores: dict[str, Store] = {}
        self._num_measured = self._measured_bytes = 0  # files of sizes that no listing gave
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-read")

    def close(self) -> None:
        """Cancel pending reads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(
        self, samples: Iterable[SourceSample]
    ) -> Iterator[tuple[SourceSample, list[Future[bytes]]]]:
        """Yield samples in order, each with the futures of its files' contents."""
        ahead: deque[_SampleAhead] = deque()
        for sample in samples:
            contents = [self._threads.submit(self.get, file) for file in sample.files]
            ahead.append(
                _SampleAhead(sample=sample, contents=contents, size_bytes=_listed_bytes(sample))
            )
            while len(ahead) > 1 and (
                len(ahead) > _AHEAD_SAMPLES or self._held_bytes(ahead) > _AHEAD_BYTES
            ):
                yield from self._given(ahead.popleft())
        while ahead:
            yield from self._given(ahead.popleft())

    def _given(self, ahead: _SampleAhead) -> Iterator[tuple[SourceSample, list[Future[bytes]]]]:
        yield ahead.sample, ahead.contents
        self._measure(ahead)  # the caller has waited for its files

    def _measure(self, ahead: _SampleAhead) -> None:
        if ahead.size_bytes is None and all(content.done() for content in ahead.contents):
            read = (each for each in ahead.contents if each.exception(0) is None)
            ahead.size_bytes = sum(len(each.result(0)) for each in read)
            self._num_measured += len(ahead.contents)
            self._measured_bytes += ahead.size_bytes

    def _held_bytes(self, ahead: Iterable[_SampleAhead]) -> int:
        """Return what samples take in memory, or will: files of unknown size as much as others."""
        held_bytes = unread = 0
        for each in ahead:
            self._measure(each)
            if each.size_bytes is None:
                unread += len(each.contents)
            else:
                held_bytes += each.size_bytes
        if self._num_measured:
            return held_bytes + unread * self._measured_bytes // self._num_measured
        return held_bytes + unread * _GUESSED_BYTES

    def get(self, file: SourceFile) -> bytes:
        """Return one file; raises StorageError.

        BadSampleError: one with a place of its own, which may be anybody's, cannot be had. The
        source's own store fails for all files.
        """
        if "://" not in file.path and not file.path.startswith("/"):
            return bytes(self._store.get(file.path))
        try:
            store, name = self._place(file.path)
        except UsageError as error:
            raise BadSampleError(str(error)) from None
        try:
            return bytes(store.get(name))
        except (StorageError, UsageError) as error:
            if _concerns_others(error, file.path):
                raise
            raise BadSampleError(str(error)) from None

    def _place(self, url: str) -> tuple[Store, str]:
        """Return the store of an object, and its path there; UsageError: the URL names none."""
        folder, name = split_url(url)
        check_path(name)
        store = self._stores.get(folder)
        if store is None:
            if len(self._stores) >= _STORES:
                self._stores.clear()
            store = self._stores[folder] = open_store(folder)
        return store, name


def _concerns_others(error: StorageError | UsageError, url: str) -> bool:
    """Return whether an error at a whole URL is no matter of that file: it must not become bad."""
    location = parse_url(url)
    is_web = location.kind == "http"
    if isinstance(error, CredentialsError):
        # Without a user a web server rejects nothing: the page is for others alone.
        return not is_web or urlsplit(location.secret_url).username is not None
    if isinstance(error, UsageError):
        return not is_web  # the settings of a cloud; a web server has none
    return isinstance(error, ForkedClientError)


def _listed_bytes(sample: SourceSample) -> int | None:
    """Return the size of a sample's files; None where one is not known."""
    sizes = [file.size_bytes for file in sample.files]
    return None if min(sizes) < 0 else sum(sizes)


PACKING_FOLDER = ".packing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """A shard to pack, with its samples in order."""

    number: int
    samples: Sequence[SourceSample]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPacker:
    """Packs shards."""

    source_url: str  # that the samples' relative paths are below
    destination_url: str  # the folder of the shards
    recode: RecodeFunction | None
    check: CheckFunction | None
    key: str  # the packing's; see `PackingPlan`

    def name(self, task: ShardTask) -> str:
        """Return the shard's URL."""
        return f"{self.destination_url}/{shard_name(task.number)}"

    def run(self, task: ShardTask, report: ReportCallback) -> tuple[BadFile, ...]:
        """Write the shard, then its record; return the files left out."""
        store = open_store(self.destination_url)
        writer = TarWriter()
        with closing(SourceReader(self.source_url)) as reader:
            content = _ShardContent(self, reader, report)
            store.put(shard_name(task.number), writer.pieces(content.samples(task.samples)))
        if len(writer.rows) == 0:
            store.delete(shard_name(task.number))
        record = replace(
            ShardRecord.build(
                writer.rows,
                number=task.number,
                name=shard_name(task.number),
                size_bytes=writer.size_bytes,
            ),
            recoded=content.recoded,
            oriented=content.oriented,
            bad=tuple(content.bad),
            key=self.key,
        )
        store.put(record_name(task.number), record.to_bytes())
        return record.bad


def shard_name(number: int) -> str:
    """Return a shard's path."""
    return f"{number:06d}.tar"


def record_name(number: int) -> str:
    """Return the path of a finished shard's record."""
    return f"{PACKING_FOLDER}/{number:06d}.arrow"


def named_by_content(file: SourceFile, data: bytes) -> SourceFile:
    """Return a file whose name is not that of a kind of file with that of the image it holds.

    Tables name files without an extension: 000007, say. And a web address may end as the server's
    program does, or with a size: photo.php, a.jpg:large. What is no image there keeps its name, and
    so does one of 16 bits, which arrives as bytes under an extension of one's own.
    """
    found = extension_by_content(data)
    if not file.extension:
        return replace(file, extension=found)
    if file.extension in IMAGE_EXTENSIONS or not _is_web(file.path) or found not in _WEB_IMAGES:
        return file
    with suppress(BadSampleError):
        read_header(data)
        return replace(file, extension=found)
    return file


_WEB_IMAGES = frozenset({"jpg", "png", "gif", "webp"})
"""What web pages show. The first bytes of others are also those of raw photographs, or of texts."""


def _is_web(path: str) -> bool:
    return path.partition("://")[0].lower() in {"http", "https"}


def recode_file(
    file: SourceFile, data: bytes, recode: RecodeFunction | None, check: CheckFunction | None
) -> tuple[bytes, bool]:
    """Return a file's content to store, and whether it was changed; raises BadSampleError."""
    if not file.extension:
        raise BadSampleError(
            "Its name has no extension, which would say what it holds, nor is it an image."
        )
    reason = refusal(f"x.{file.extension}")
    if reason is not None:
        raise BadSampleError(f"Its name is refused: {reason}.")
    role = f"mask.{file.extension}" if file.is_mask else file.extension
    content = data if recode is None else recode(role, data)
    changed = content != data
    if check is not None and not changed:  # recode has decoded what it changed
        check(role, data)
    check_size(content)
    return content, changed


def is_oriented(file: SourceFile, data: bytes) -> bool:
    """Return whether a file is an image with an EXIF orientation other than the stored one."""
    is_image = file.extension.rpartition(".")[2] in IMAGE_EXTENSIONS
    return is_image and read_orientation(data) != 1


def check_pair(files: Sequence[SourceFile], contents: Sequence[bytes]) -> None:
    """Raise BadSampleError where a sample is an image and a mask that differ by orientation."""
    if len(files) == 2 and files[1].is_mask:
        check_pair_orientation(*contents)


class _ShardContent:
    """The members of samples; bad files are left out and recorded."""

    def __init__(self, packer: ShardPacker, reader: SourceReader, report: ReportCallback) -> None:
        self.bad: list[BadFile] = []
        self.recoded = self.oriented = 0
        self._packer = packer
        self._reader = reader
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
        sources: list[bytes] = []
        named_files: list[SourceFile] = []
        known_bad = len(self.bad)
        read_bytes = recoded = 0
        for file, content in zip(sample.files, contents, strict=True):
            with collect_bad_file(file.path, self.bad):
                data = wait_for_result(content)
                read_bytes += len(data)
                # Of a mask beside it, the names of both would depend on each other.
                named = named_by_content(file, data) if len(sample.files) == 1 else file
                stored, changed = recode_file(named, data, self._packer.recode, self._packer.check)
                members.append((named.extension, stored))
                sources.append(data)
                named_files.append(named)
                recoded += changed
        if len(members) == len(sample.files):
            with collect_bad_file(sample.files[0].path, self.bad):
                check_pair(sample.files, sources)
        bad = len(self.bad) > known_bad
        self._report(1, read_bytes, int(bad))
        if bad:
            return None
        self.recoded += recoded
        self.oriented += sum(map(is_oriented, named_files, sources))
        return members
