"""The samples of a tar: adjacent members with one key, and the faults in what is no sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from headrace.core.errors import BadSampleError
from headrace.data.image_files import ImageSides, check_pair_sides, masks_among
from headrace.data.shards.data_files import IgnoredFiles, is_image, is_system_path
from headrace.data.shards.index_rows import LARGEST_MEMBER_BYTES, MemberKind
from headrace.data.shards.index_writer import IndexRowBuilder
from headrace.data.shards.members import split_name
from headrace.data.shards.reports import Fault
from headrace.data.shards.tar import TarMember, TarReader, shown_name
from headrace.data.storage import RangeStream, Store


@dataclass(slots=True, kw_only=True)
class TarIndex:
    """The result of reading one tar."""

    path: str
    size_bytes: int
    rows: IndexRowBuilder = field(default_factory=IndexRowBuilder)  # its samples
    num_members: int = 0  # of these samples
    faults: list[Fault] = field(default_factory=list)
    oriented: int = 0  # images with an EXIF orientation
    left_out: set[str] = field(default_factory=set)  # keys of samples that faults are of
    ignored: IgnoredFiles = field(default_factory=IgnoredFiles)  # members of no sample

    def add(self, key: str, named: Iterable[tuple[str, TarMember]]) -> None:
        """Add a sample by its members' extensions; those with a fault are left out."""
        members: dict[str, tuple[MemberKind, tuple[int, int, int]]] = {}
        sides: dict[str, ImageSides | None] = {}
        for extension, member in named:
            fault = None
            if member.size_bytes > LARGEST_MEMBER_BYTES:
                message = f"{shown_name(member.name)} has {member.size_bytes} bytes, 4 GiB at most."
                fault = Fault("size", self.path, message)
            elif extension in members:
                message = f"two files with one key, {shown_name(member.name)}."
                fault = Fault("duplicate", self.path, message)
            if fault is None:
                place = member.offset, member.size_bytes, member.crc32c
                members[extension] = "range", place
                if is_image(f"x.{extension}"):
                    sides[extension] = member.sides
                self.oriented += member.oriented
            else:
                self.faults.append(fault)
                self.left_out.add(key)
        if members:
            self.rows.add(key, members)
            self.num_members += len(members)
        if len(sides) == 2:
            self._check_pair(key, sides)

    def _check_pair(self, key: str, sides: Mapping[str, ImageSides | None]) -> None:
        """Note a fault where a sample is an image and a mask that differ by orientation."""
        masks = masks_among(tuple(sides))
        if len(masks) != 1:
            return
        (mask,) = masks
        (image,) = sides.keys() - masks
        try:
            check_pair_sides(sides[image], sides[mask])
        except BadSampleError as error:
            self.faults.append(Fault("size", self.path, f"{shown_name(key)}: {error}"))
            self.left_out.add(key)

    def whole_rows(self) -> IndexRowBuilder:
        """Return the samples that no fault is of."""
        if not self.left_out:
            return self.rows
        rows = IndexRowBuilder()
        for key, members in self.rows.items():
            if key not in self.left_out:
                rows.add(key, {name: ("range", place) for name, place in members.items()})
        return rows


_LOST_KINDS = frozenset({"cut", "header", "unreadable"})  # after which members may be missing


def index_tar(
    store: Store, path: str, size_bytes: int, indexed: Callable[[str], bool] = lambda _: False
) -> TarIndex:
    """Read a whole tar and return its samples and faults; raises StorageError if it cannot.

    Hidden members, and systems' own, are ignored, except where an index has their key already, as
    `indexed` says: one of an earlier version, or of a table that names such files.
    """
    found = TarIndex(path=path, size_bytes=size_bytes)
    reader = TarReader(RangeStream(store, path, size_bytes), path, found.faults)
    seen: set[str] = set()
    key = ""
    for key, named in groupby(_named_members(reader, found.ignored, indexed), key=itemgetter(0)):
        if key in seen:
            found.left_out.add(key)
            message = (
                f"members of sample {shown_name(key)} do not lie side by side, so readers would "
                "see parts of it. Sort the tar by name."
            )
            found.faults.append(Fault("order", path, message))
        seen.add(key)
        found.add(key, [(extension, member) for _, extension, member in named])
        places = len(found.rows) * found.rows.num_extensions
        if is_mostly_absent(places, found.num_members, free=_FREE_PLACES):
            why = too_many_kinds(len(found.rows), found.rows.num_extensions)
            message = f"{why} The rest of the tar was not read."
            found.faults.append(Fault("name", path, message))
            break
    found.left_out |= reader.left_out
    if any(fault.kind in _LOST_KINDS for fault in found.faults):
        found.left_out.add(key)
    if not found.rows and not found.faults:
        others = found.ignored
        why = f"; it holds {others.num_files} other members ({', '.join(others.examples)})"
        message = f"the tar holds no sample{why if others.num_files else ''}."
        found.faults.append(Fault("missing", path, message))
    return found


_FREE_PLACES = 1_000_000  # of one tar, 16 MB; all together may have more


def is_mostly_absent(places: int, num_members: int, free: int = 100 * _FREE_PLACES) -> bool:
    """Return whether an index has very many places for members, and few members.

    Each of its rows has a place for each kind of member that occurs in any.
    """
    return places > free and 20 * num_members < places


def too_many_kinds(num_samples: int, num_kinds: int) -> str:
    """Return why such members are refused."""
    return (
        f"{num_samples} samples with {num_kinds} kinds of members, of which each has few: the "
        "name of a sample ends at the first dot of its file's name. Rename the members."
    )


def _named_members(
    members: Iterable[TarMember], ignored: IgnoredFiles, indexed: Callable[[str], bool]
) -> Iterator[tuple[str, str, TarMember]]:
    """Yield members with their key and extension; add the names of those of no sample."""
    for member in members:
        name = split_name(member.name)
        is_system = is_system_path(member.name)
        if name is None or (is_system and not indexed(name[0])):
            ignored.add(member.name, system=is_system)
        else:
            yield *name, member
