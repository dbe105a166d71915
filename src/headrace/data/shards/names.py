"""Names of members: key and extension as WebDataset cuts them, and names that are refused."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

# webdataset/tariterators.py, base_plus_ext: the extension begins at the first dot of the last
# path component, so that "a/x.mask.png" is the member "mask.png" of the sample "a/x".
_KEY_AND_EXTENSION = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)", re.DOTALL)

# tariterators.py, tar_file_iterator: such members describe the tar, they are no samples.
_META = re.compile(r"__[^/]*__($|/)")

# Formats that run code when they are decoded.
_REFUSED_EXTENSIONS = frozenset({"pkl", "pth", "pyd"})

# What would end a key early, break a line of a listing, or not encode as UTF-8.
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

    Dots of the last component would begin the extension, and two leading underscores mark what
    WebDataset skips, so they are written as %2E and %5F; "%" itself as %25. Different stems give
    different keys.
    """
    folder, slash, last = stem.rpartition("/")
    key = folder.replace("%", "%25") + slash + last.replace("%", "%25").replace(".", "%2E")
    key = _ESCAPED.sub(lambda match: match[0] if match[0] == "%" else _percent(match[0]), key)
    return f"%5F{key[1:]}" if key.startswith("__") else key


def extension_of(path: str) -> str:
    """Return what follows the last dot of a file's name, lower case, "jpg" for "jpeg"; "" if none.

    Samples of one dataset should share their extensions however their files spell them.
    """
    stem, dot, extension = path.rpartition("/")[2].rpartition(".")
    if not (dot and stem):
        return ""
    extension = extension.lower()
    return "jpg" if extension == "jpeg" else extension


def stem_of(path: str) -> str:
    """Return a file's path without its extension."""
    folder, slash, name = path.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return folder + slash + (stem if dot and stem else name)


def path_of_url(url: str) -> str:
    """Return the path within a URL's bucket or server, without a query; a plain path as it is."""
    path = urlsplit(url).path if "://" in url else url
    return path.lstrip("/").removeprefix("./")


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))
