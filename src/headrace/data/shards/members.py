"""The members of samples: their names, patterns of their paths, their byte ranges and checksums.

In a pattern `*` stands for one or more characters within one path component, `**` for one or more
of any, and `**/` for any number of folders or none. The text that the wildcards match, joined by
"/", is the stem: the part that an image and its mask share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Self

import google_crc32c

from headrace.core.errors import CorruptError, UsageError

# webdataset/tariterators.py, base_plus_ext: the extension begins at the first dot of the last
# path component, so that "a/x.mask.png" is the member "mask.png" of the sample "a/x".
_KEY_AND_EXTENSION = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)", re.DOTALL)

# tariterators.py, tar_file_iterator: such members describe the tar and are no samples.
_META = re.compile(r"__[^/]*__($|/)")

# Formats that run code when they are decoded.
_REFUSED_EXTENSIONS = frozenset({"pkl", "pth", "pyd"})

_SPELLINGS = {"jfif": "jpg", "jpe": "jpg", "jpeg": "jpg", "tiff": "tif"}

# Characters that end a key early, break a line of a listing, or do not encode as UTF-8.
_ESCAPED = re.compile("[%\x00-\x1f\x7f\ud800-\udfff]")


def split_name(name: str) -> tuple[str, str] | None:
    """Return a member's key and extension (lower case), or None where it belongs to no sample."""
    if _META.match(name):
        return None
    match = _KEY_AND_EXTENSION.fullmatch(name)
    if match is None or not match[2]:
        return None
    return match[1], match[2].lower()


def refusal(name: str) -> str | None:
    """Return why a member of this name is refused, or None where it is accepted."""
    parts = name.split("/")
    if name.startswith("/"):
        return "an absolute path"
    if ".." in parts:
        return "a path with '..'"
    if "\0" in name:
        return "a name with a zero byte"
    refused = _REFUSED_EXTENSIONS.intersection(parts[-1].lower().split(".")[1:])
    if refused:
        return f".{min(refused)}, a format that can run code when it is decoded"
    return None


def key_of(stem: str) -> str:
    """Return the key for a file's path without its extension.

    Dots of the last component would begin the extension, and WebDataset skips names with two
    leading underscores, so they are written as %2E and %5F; "%" itself as %25. Different stems give
    different keys.
    """
    folder, slash, last = stem.rpartition("/")
    key = folder.replace("%", "%25") + slash + last.replace("%", "%25").replace(".", "%2E")
    key = _ESCAPED.sub(lambda match: match[0] if match[0] == "%" else _percent(match[0]), key)
    return f"%5F{key[1:]}" if key.startswith("__") else key


def extension_of(path: str) -> str:
    """Return a file's extension, lower case, "jpg" for "jpeg", "tif" for "tiff"; "" if none.

    Samples of one dataset should share their extensions whatever their files' spelling.
    """
    stem, dot, extension = path.rpartition("/")[2].rpartition(".")
    if not (dot and stem):
        return ""
    extension = extension.lower()
    return _SPELLINGS.get(extension, extension)


def stem_of(path: str) -> str:
    """Return a file's path without its extension."""
    folder, slash, name = path.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return folder + slash + (stem if dot and stem else name)


def path_of_url(url: str) -> str:
    """Return the path within a URL's bucket or server, without a query; paths are unchanged.

    Only web servers have queries and fragments: in a bucket "?" and "#" are parts of a name.
    """
    scheme, separator, rest = url.partition("://")
    if scheme.lower() in {"http", "https"}:
        path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")[2]
    else:
        path = rest.partition("/")[2] if separator else url
    return path.lstrip("/").removeprefix("./")


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


_WILDCARD = re.compile(r"(\*+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPattern:
    """A pattern of paths."""

    pattern: str
    literals: tuple[str, ...]  # around the wildcards, one more than there are wildcards
    wildcards: tuple[str, ...]  # "*" or "**", in order; "**" at most once
    regex: re.Pattern[str]  # matches whole paths; one group a wildcard

    @classmethod
    def parse(cls, pattern: str) -> Self:
        """Parse a pattern; raises UsageError where it has no wildcard, or "**" twice."""
        pieces = _WILDCARD.split(pattern.removeprefix("./"))
        literals, wildcards = tuple(pieces[::2]), tuple(pieces[1::2])
        if not wildcards or any(len(wildcard) > 2 for wildcard in wildcards):
            raise UsageError(
                f"pattern {pattern!r}: use '*' for part of a name and '**' for several folders, as "
                "in 'images/*.jpg'."
            )
        if wildcards.count("**") > 1:
            raise UsageError(f"pattern {pattern!r}: '**' may stand there once.")
        if any(left == "" for left in literals[1:-1]):
            raise UsageError(f"pattern {pattern!r}: wildcards need text between them.")
        text = re.escape(literals[0])
        for before, wildcard, after in zip(literals, wildcards, literals[1:], strict=False):
            if _spans_no_folder(before, wildcard, after):
                text += f"(?:(.+)/)?{re.escape(after[1:])}"
            else:
                text += ("(.+)" if wildcard == "**" else "([^/]+)") + re.escape(after)
        regex = re.compile(text, re.DOTALL)
        return cls(pattern=pattern, literals=literals, wildcards=wildcards, regex=regex)

    @property
    def folder(self) -> str:
        """The deepest folder that contains all matches, without a slash at its end; "" for all."""
        return self.literals[0].rpartition("/")[0]

    @property
    def num_characters(self) -> int:
        """The number of characters that stand for themselves."""
        return sum(map(len, self.literals))

    def match(self, path: str) -> str | None:
        """Return the stem of a path, or None where the path does not match."""
        match = self.regex.fullmatch(path)
        return "/".join(each for each in match.groups() if each is not None) if match else None

    def expand(self, stem: str) -> str:
        """Return the path with this stem: the inverse of `match`."""
        parts = stem.split("/")
        if "**" in self.wildcards:
            left = self.wildcards.index("**")
            right = len(parts) - (len(self.wildcards) - left - 1)
            if left == right:  # no folder, and not its slash either
                before, after = self.literals[: left + 1], self.literals[left + 1 :]
                literals = (*before[:-1], before[-1] + after[0][1:], *after[1:])
                return literals[0] + "".join(map(str.__add__, parts, literals[1:]))
            parts[left:right] = ["/".join(parts[left:right])]
        return self.literals[0] + "".join(map(str.__add__, parts, self.literals[1:]))


def _spans_no_folder(before: str, wildcard: str, after: str) -> bool:
    """Return whether a wildcard may stand for no folder at all, as in "a/**/*.jpg"."""
    return wildcard == "**" and after.startswith("/") and (not before or before.endswith("/"))


class Member(NamedTuple):
    """One file of a sample."""

    extension: str  # the name after the key: "jpg", "cls", or of several parts, "mask.png"
    path: str  # the object that contains it: a shard, or a loose object; "" where `data` is set
    offset: int  # its first byte in that object
    size_bytes: int
    crc32c: int  # CRC-32C (Castagnoli) of its bytes
    data: bytes | None = None  # where the index stores them (the class of a loose object)


class SampleLocation(NamedTuple):
    """The place of one sample."""

    sample: int  # its number, 0 to num_samples - 1, in the order of the index
    shard: int  # the number of its shard; for loose objects the sample's own number
    path: str  # the shard's below the dataset's `data_url`; for loose objects its first object's
    key: str  # unique within the shard
    members: tuple[Member, ...]


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of bytes: 0xE3069283 for b"123456789" (RFC 3720, B.4)."""
    return int(google_crc32c.value(as_bytes(data)))  # the C library accepts only bytes


def as_bytes(data: bytes | bytearray | memoryview) -> bytes:
    """Return data as bytes, without a copy where it is a view of a whole bytes object."""
    if isinstance(data, memoryview) and type(data.obj) is bytes and data.nbytes == len(data.obj):
        return data.obj
    return data if isinstance(data, bytes) else bytes(data)


def verify(location: SampleLocation, member: Member, data: bytes | memoryview, url: str) -> None:
    """Raise CorruptError, naming shard, sample and bytes, where a member's bytes differ.

    `url` is the folder that `member.path` is relative to, for the message.
    """
    if len(data) != member.size_bytes:
        what = f"{len(data)} bytes instead of {member.size_bytes}"
    elif checksum(data) != member.crc32c:
        what = "checksum differs"
    else:
        return
    last = member.offset + member.size_bytes - 1
    raise CorruptError(
        f"{member.path} of {url}: {what} at sample {location.key} (.{member.extension}, bytes "
        f"{member.offset}-{last}). Run `headrace data lint {url}` to find all such members."
    )
