"""The samples of one tar: members that lie side by side and share a key, as WebDataset reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.data.shards.faults import Fault, FaultKind
from headrace.data.shards.names import split_name
from headrace.data.shards.rows.builder import RowBuilder
from headrace.data.shards.rows.columns import LARGEST_MEMBER_BYTES, MemberKind
from headrace.data.shards.tar.range_stream import RangeStream
from headrace.data.shards.tar.reader import TarMember, TarReader
from headrace.data.storage import Store


@dataclass(slots=True, kw_only=True)
class TarIndex:
    """What a walk over one tar found.

    Attributes:
        path: The tar.
        size_bytes: Its size.
        rows: Its samples.
        faults: What is wrong with it.
        ignored: Members that belong to no sample.
    """

    path: str
    size_bytes: int
    rows: RowBuilder = field(default_factory=RowBuilder)
    faults: list[Fault] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def index_tar(store: Store, path: str, size_bytes: int) -> TarIndex:
    """Read a tar from front to back and return its samples.

    Raises:
        StorageError: It cannot be read. What is wrong with its content becomes faults.
    """
    found = TarIndex(path=path, size_bytes=size_bytes)
    grouper = _Grouper(found)
    for member in TarReader(RangeStream(store, path, size_bytes), path, found.faults):
        grouper.add(member)
    grouper.end_sample()
    if not found.rows and not found.faults:
        found.faults.append(Fault("missing", path, "the tar holds no sample."))
    return found


class _Grouper:
    """Collects the members of one sample after another."""

    def __init__(self, found: TarIndex) -> None:
        self._found = found
        self._seen: set[str] = set()
        self._key: str | None = None
        self._members: dict[str, tuple[MemberKind, tuple[int, int, int]]] = {}

    def add(self, member: TarMember) -> None:
        name = split_name(member.name)
        if name is None:
            self._found.ignored.append(member.name)
            return
        key, extension = name
        if key != self._key:
            self.end_sample()
            self._begin_sample(key)
        if extension in self._members:
            self._fault("duplicate", f"two files with one key, {member.name!r}")
        elif member.size_bytes > LARGEST_MEMBER_BYTES:
            self._fault("size", f"{member.name!r} has {member.size_bytes} bytes, 4 GiB at most")
        else:
            self._members[extension] = (
                "range",
                (member.offset, member.size_bytes, member.crc32c),
            )

    def end_sample(self) -> None:
        if self._key is not None and self._members:
            self._found.rows.add(self._key, self._members)
        self._key, self._members = None, {}

    def _begin_sample(self, key: str) -> None:
        if key in self._seen:
            self._fault(
                "order",
                f"members of sample {key!r} do not lie side by side, so readers would see parts "
                "of it. Sort the tar by name",
            )
        self._seen.add(key)
        self._key = key

    def _fault(self, kind: FaultKind, message: str) -> None:
        self._found.faults.append(Fault(kind, self._found.path, f"{message}."))
