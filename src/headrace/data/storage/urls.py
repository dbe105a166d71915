"""URLs of stores: their parts, their form for messages, and the URLs of streamed channels."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from headrace.core import env
from headrace.core.errors import UsageError

Kind = Literal["local", "memory", "s3", "gs", "az", "http"]

_KINDS: dict[str, Kind] = {
    "file": "local", "memory": "memory", "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs",
    "az": "az", "http": "http", "https": "http",
}  # fmt: skip
_WITHOUT_QUERY = {"s3", "s3a", "gs", "gcs", "az", "memory"}  # here "?" is part of a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The parts of a store's URL."""

    kind: Kind
    root: str
    """The bucket, container, or server (scheme and host, for http); "" for local paths; the name
    for memory."""
    prefix: str  # below the root, without slashes at its ends; local: the absolute folder
    url: str  # for messages: without user, password and query
    secret_url: str = field(default="", repr=False)  # http only: the complete URL, never printed

    def key(self, path: str) -> str:
        """Return the object's path below the root; where `written_path` is set, below the URL."""
        if self._names_itself(path):
            return ""
        prefix = "" if self.written_path else self.prefix
        return f"{prefix}/{path}" if prefix and path else prefix or path

    def object_url(self, path: str) -> str:
        """Return the URL of the object `path`, for messages."""
        return f"{self.url}/{path}" if path and not self._names_itself(path) else self.url

    @property
    def written_path(self) -> str:
        """The URL's own path, of http where keys would be requested as another one; else ""."""
        path = urlsplit(self.secret_url).path.rstrip("/") if self.kind == "http" else ""
        return "" if not path or _is_key(path[1:]) else path

    def _names_itself(self, path: str) -> bool:
        """Return whether a path is the name that `split_url` gives the object of this very URL."""
        return self.kind == "http" and path == _name_itself(self.secret_url)


def parse_url(url: str) -> Location:
    """Parse a plain path, or a URL of file, s3, gs, az, http(s) or memory; raises UsageError."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _local(url)
    kind = _KINDS.get(scheme.lower())
    if kind is None:
        raise UsageError(
            f"{safe_url(url)}: no store is known for {scheme}://. Use a plain path, file://, "
            "s3://, gs://, az://, http://, https:// or memory://."
        )
    if kind == "local":
        host, slash, path = rest.partition("/")
        return _local(unquote(slash + path if host == "localhost" else rest))
    if kind == "http":
        return _http(url)
    root, _, prefix = rest.partition("/")
    if not root and kind != "memory":
        raise UsageError(f"{safe_url(url)} names no bucket. Write it as {scheme}://bucket/folder.")
    if "@" in root or "?" in root or (":" in root and kind != "memory"):
        raise UsageError(
            f"{safe_url(url)}: the bucket's name holds '@', ':' or '?'. Credentials and endpoints "
            "come from the environment (such as AWS_ENDPOINT_URL), not from the URL."
        )
    if kind != "memory":
        _refuse_characters(root, url, "bucket's")
    prefix = prefix.strip("/")
    shown = f"{scheme.lower()}://{root}/{prefix}".rstrip("/") if root else f"memory://{prefix}"
    return Location(kind=kind, root=root, prefix=prefix, url=shown)


def cache_folder(path: str | os.PathLike[str], named: str) -> Path:
    """Return the absolute folder of a cache, from a path (also with ~) or a file:// URL.

    `named` is the argument or variable, for the message. UsageError: it is no folder of this host.
    """
    location = parse_url(os.fspath(path))
    if location.kind != "local":
        raise UsageError(
            f"{named}={location.url}: a cache lies in a folder of this host, and this is the URL "
            "of a store. Name a folder."
        )
    return Path(location.prefix)


def split_url(url: str) -> tuple[str, str]:
    """Return the folder's URL and the object's name: ("s3://b/train", "0.tar").

    `open_store(folder).get(name)` requests exactly the given URL. So the query of an http URL stays
    with the folder's URL; and where a name below the folder would be requested otherwise than it is
    written, as "a%2Fb.jpg", the object's own URL is in the place of the folder's.
    """
    location = parse_url(url)
    if location.kind == "http":
        itself = _name_itself(url)
        if itself is not None:
            return url, itself
        return parent_url(url), unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
    if not location.prefix:
        raise UsageError(f"{location.url} names a whole bucket, not an object.")
    folder, _, name = location.url.rpartition("/")
    return folder or "/", name


def parent_url(url: str) -> str:
    """Return the URL of the folder that an object lies in; the query of an http URL is kept."""
    if parse_url(url).kind != "http":
        return split_url(url)[0]
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/").rpartition("/")[0]))


def join_url(url: str, path: str) -> str:
    """Return the URL of `path` below `url`; the query of an http URL is kept."""
    if parse_url(url).kind == "http":
        parts = urlsplit(url)
        below = f"{parts.path.rstrip('/')}/{quote(path, safe=_SENT)}"
        return urlunsplit(parts._replace(path=below))
    return f"{url.rstrip('/')}/{path}"


_SENT = "/!$&'()*+,;=:@"
"""What the client sends as it is in a key's URL, beside letters, digits and "-._~"."""

_SENT_OTHERWISE = re.compile(r"[\x00-\x1f\x7f\[\]^|]")
"""What it refuses in a key, or sends as it is where `quote` does not."""

_NAMELESS = "%"  # what no name in a URL's path is: that would be %25


def _is_key(path: str) -> bool:
    """Return whether the client requests a URL's path as written where its key is the unquoted one.

    It quotes each part of a key anew: "a%2Fb" becomes "a/b". There are no empty parts, and all are
    in UTF-8.
    """
    try:
        key = unquote(path, errors="strict")
        is_same = quote(key, safe=_SENT) == quote(path, safe=f"{_SENT}%")
    except UnicodeError:
        return False
    is_plain = not {"", ".", ".."}.intersection(key.split("/"))
    return is_same and is_plain and not _SENT_OTHERWISE.search(key)


def _name_itself(url: str) -> str | None:
    """Return the name of an http URL's object in a store at this very URL; None: it needs none."""
    folder, _, name = urlsplit(url).path.rstrip("/").rpartition("/")
    return None if _is_key(name) and not folder.endswith("/") else name or _NAMELESS


_HOST_AND_PORT = re.compile(r"[^:@]*(?::\d+)?|(?:[^@]*@)?\[[^]]*\](?::\d+)?|.*@.*")
"""What stands before the first slash of a URL, unless it is the first part of a password."""


def safe_url(url: str) -> str:
    """Return `url` without user, password, query and fragment, for messages and logs."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() == "file":
        return url
    begin = re.split("[/?#]", rest, maxsplit=1)[0]
    is_bucket = scheme.lower() in _WITHOUT_QUERY
    is_host = ":" not in begin if is_bucket else _HOST_AND_PORT.fullmatch(begin)
    if "@" in rest[len(begin) :] and not is_host:
        rest = rest.rpartition("@")[2]  # a key of AWS may hold slashes, which should be quoted
    host, slash, path = rest.partition("/")
    host, _, cut = host.partition("?")
    if cut:
        slash, path = "", ""
    if not is_bucket:
        path = path.partition("?")[0].partition("#")[0]
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _local(path: str) -> Location:
    if not path:  # it would be the working folder
        raise UsageError("A path or URL is empty. Is a variable unset? The working folder is '.'.")
    folder = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  (keeps links)
    return Location(kind="local", root="", prefix=folder, url=folder)


_NO_NAME = re.compile(r"[\s\x00-\x1f\x7f\"<>\\^`{}|]")
"""Characters that names of buckets and hosts never have: braces are those of a template."""


def _refuse_characters(name: str, url: str, whose: str) -> None:
    """Raise UsageError for a name that is none, for which clients of stores fail in other ways."""
    found = _NO_NAME.search(name)
    if found is not None:
        raise UsageError(
            f"{safe_url(url)}: the {whose} name holds {found[0]!r}, which no such name does. Write "
            "the name itself there."
        )


def _http(url: str) -> Location:
    try:
        parts = urlsplit(url)
        is_port = _HOST_AND_PORT.fullmatch(parts.netloc) is not None
        has_host = bool(parts.hostname) and (not is_port or parts.port != 0)
    except ValueError:  # an address of IPv6 or a port that is none; the error quotes a password
        raise UsageError(f"{safe_url(url)} is no URL. Correct its host.") from None
    if not has_host:
        raise UsageError(f"{safe_url(url)} names no host. Write it as https://host/folder.")
    if not is_port:
        raise UsageError(
            f"{safe_url(url)}: what follows the host's name is no port. In a user's password, "
            "write / as %2F, ? as %3F and # as %23."
        )
    _refuse_characters(parts.hostname or "", url, "host's")
    shown = safe_url(url).rstrip("/")
    root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    prefix = unquote(parts.path).strip("/")
    return Location(kind="http", root=root, prefix=prefix, url=shown, secret_url=url)


def check_path(path: str) -> None:
    """Raise UsageError for a path that would leave the store, or names no object."""
    wrapped = f"/{path}/"  # three searches cost less than splitting: this runs for every sample
    if "//" in wrapped or "/./" in wrapped or "/../" in wrapped:
        raise UsageError(
            f"{path!r} is no path of an object: it is relative to the store's URL, with names "
            "between single slashes, and without '.' and '..'."
        )


def streamed_url(url: str) -> str:
    """Return the URL of the data where a path is in a streamed channel; else `url` itself.

    In modes Pipe and Stream there is no folder: `HEADRACE_STREAMED` maps its path to the data's
    URL. A path may be below a channel's folder.
    """
    mapping = env.PIPE_CHANNELS.get()
    if mapping is None or "://" in url:
        return url
    path = os.path.abspath(url)  # noqa: PTH100  (links are not followed: nothing exists there)
    for folder, data in json.loads(mapping).items():
        if path == folder or path.startswith(f"{folder}/"):
            return f"{data.rstrip('/')}{path[len(folder) :]}"
    return url
