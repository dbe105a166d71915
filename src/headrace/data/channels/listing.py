"""The objects of a channel, each with a path on this host, and warnings of changed objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, NotFoundError, StorageError, UsageError
from headrace.core.lazy import sha256
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.channels.sidecar_client import END, ChannelRequest, ChannelsRequest
from headrace.data.storage import (
    ObjectInfo,
    StorageConfig,
    declare_leaf,
    open_store,
    parse_url,
    safe_url,
    split_url,
)
from headrace.data.storage.client.retries import NO_FILES_NAME
from headrace.data.storage.remote_store import RemoteStore

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelListing:
    """The objects of a channel for this host."""

    base: str  # the URL that their paths are below; may contain secrets
    url: str  # the channel's, without secrets
    objects: tuple[ObjectInfo, ...]  # in the order of their keys
    folders: tuple[str, ...]  # all folders of their files, parents first
    inner: str = ""  # a folder below `base` whose files lie directly in the channel's

    def place(self, info: ObjectInfo) -> str:
        """Return where an object's file lies in the channel's folder."""
        return place_of(info, self.inner)

    def outside(self) -> list[str]:
        """Return the paths of objects that lie beside the folder that the URL names."""
        name = self.url.rpartition("/")[2]
        paths = [info.path for info in self.objects]
        if safe_url(self.base).rstrip("/") == self.url.rstrip("/") or (
            not self.inner and name not in paths  # the URL names no folder and no object
        ):
            return []
        return [path for path in paths if path != name and not path.startswith(f"{name}/")]

    def print_outside_folder(self, channel: str) -> None:
        """Print which objects are taken though they lie beside the folder that the URL names."""
        outside = self.outside()
        if outside:
            print_status(
                f"channel {channel}: {self.url} is the beginning of keys, as on SageMaker, so that "
                f"it has {first_names(outside)} too"
                + (f"; {self.url}/ would be the folder alone" if self.inner else "")
            )

    @property
    def size_bytes(self) -> int:
        """The size of all objects."""
        return sum(info.size_bytes for info in self.objects)

    def identity(self) -> str:
        """Return a hash that two listings share if their objects are the same, unchanged."""
        state = sha256()
        state.update(json.dumps([safe_url(self.base), self.folders]).encode())
        for info in self.objects:
            state.update(json.dumps(content_key(info)).encode())
        return str(state.hexdigest()[:32])

    def changes_since(self, earlier: ChannelListing) -> list[str]:
        """Return the paths of an earlier listing's objects that were changed or removed."""
        now = {content_key(info) for info in self.objects}
        return [info.path for info in earlier.objects if content_key(info) not in now]


def place_of(info: ObjectInfo, inner: str) -> str:
    """Return where an object's file lies, if the files of folder `inner` lie directly there."""
    return info.path.removeprefix(f"{inner}/") if inner else info.path


def content_key(info: ObjectInfo) -> tuple[str, str, int]:
    """Return what changes when an object's content does: path, ETag or time, and size in bytes."""
    return info.path, info.etag or f"@{info.modified_s}", info.size_bytes


def list_channel(channel: ChannelRequest, config: StorageConfig) -> ChannelListing:
    """List a channel's share for this host; StorageError: it cannot be listed.

    UsageError: there are no objects, or one cannot be a file in a folder.
    """
    base, inner, found = _list_objects(channel, config)
    named = f"--channel {channel.name}={safe_url(channel.url)}"
    if not found:
        raise UsageError(f"{named}: there is no object there, nor any below it. Check the URL.")
    files, folders = _files_and_folders(named, found, inner)
    share = files[channel.number :: channel.of]
    if not share:
        raise UsageError(
            f"{named}: {len(files)} objects cannot be shared by {channel.of} hosts, each of which "
            "wants one. Use fewer hosts, or FullyReplicated."
        )
    return ChannelListing(
        base=base, url=safe_url(channel.url), objects=tuple(share), folders=tuple(folders),
        inner=inner,
    )  # fmt: skip


def is_key_prefix(url: str) -> bool:
    """Return whether a URL is the beginning of keys, as SageMaker reads it, not a folder.

    `s3://b/train` is that of train/x and train-a.csv; `s3://b/train/` is the folder.
    """
    location = parse_url(url)
    # Directory buckets list in no order, and there only folders can be listed.
    is_ordered = location.kind == "s3" and not location.root.endswith("--x-s3")
    return is_ordered and location.prefix != "" and not url.endswith("/")


def list_key_prefix(url: str, config: StorageConfig) -> tuple[str, str, list[ObjectInfo]]:
    """Return (base URL, inner folder, objects) of the keys that begin so; see `ChannelListing`.

    SageMaker gives a file the rest of its key after the prefix where that is a folder's, and else
    its whole name (sagemaker-python-sdk issue 3612).
    """
    folder, name = split_url(url)
    store = open_store(folder, config=config, client="direct")
    assert isinstance(store, RemoteStore)
    found = list(store.list_beginning(name))
    has_inner = any(info.path.startswith(f"{name}/") for info in found)
    if has_inner:  # consoles write an empty object with the folder's key to show a folder
        found = [info for info in found if info.path != name or info.size_bytes]
        if all(info.path.startswith(f"{name}/") for info in found):
            return url, "", [replace(info, path=info.path[len(name) + 1 :]) for info in found]
    return folder, name if has_inner else "", found


def list_objects(url: str, config: StorageConfig) -> tuple[str, str, list[ObjectInfo]]:
    """Return (base URL, inner folder, objects) of a folder, key prefix or single object.

    There may be none. StorageError: they cannot be listed.
    """
    location = parse_url(url)
    unlisted: StorageError | None = None
    try:
        if is_key_prefix(url):
            return list_key_prefix(url, config)
        found = list(open_store(url, config=config, client="direct").list())
    except StorageError as error:
        # A plain web server has no listing.
        if location.kind != "http" or NO_FILES_NAME in str(error):
            raise
        found, unlisted = [], error
    if found or not location.prefix:
        return url, "", found
    folder, name = split_url(url)
    try:
        only = open_store(folder, config=config, client="direct").head(name)
    except NotFoundError:
        if unlisted is not None:
            raise unlisted from None
        return url, "", []
    return folder, "", [only]


def _list_objects(
    channel: ChannelRequest, config: StorageConfig
) -> tuple[str, str, list[ObjectInfo]]:
    """Return what `list_objects` does; UsageError: it can be no channel."""
    location = parse_url(channel.url)
    if location.kind == "memory":
        raise UsageError(
            f"{location.url}: what lies in a process's memory is no channel of another. Name a "
            "URL of a bucket, or a path."
        )
    try:
        return list_objects(channel.url, config)
    except StorageError as error:
        if NO_FILES_NAME in str(error):
            raise UsageError(f"--channel {channel.name}={error}") from None
        raise


def _files_and_folders(
    named: str, found: Sequence[ObjectInfo], inner: str
) -> tuple[list[ObjectInfo], list[str]]:
    """Return the objects that are files, and the folders that they need."""
    needed: dict[str, str] = {}
    for info in found:
        parts = place_of(info, inner).split("/")
        if any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise UsageError(
                f"{named}: the object {info.path!r} would not lie in the channel's folder. "
                "Rename it, or name a folder beside it."
            )
        for end in range(1, len(parts)):
            needed.setdefault("/".join(parts[:end]), info.path)
    files: dict[str, ObjectInfo] = {}
    for info in found:
        # Consoles write an empty object with the folder's key to show a folder.
        place = place_of(info, inner)
        if info.size_bytes == 0 and (place in needed or place in files):
            continue
        within = needed.get(place)
        if within is not None:
            raise UsageError(
                f"{named}: {info.path!r} is an object, and a folder too ({within!r} lies in it). "
                "No disk can hold both: rename one, or name a folder beside them."
            )
        other = files.get(place)
        if other is not None and other.path != info.path:
            raise UsageError(
                f"{named}: {other.path!r} and {info.path!r} would both be the file {place}. Rename "
                f"one, or end the URL with a slash for the folder {inner} alone."
            )
        files[place] = info
    return list(files.values()), sorted(needed)


def check_unchanged(url: str, listed: ObjectInfo, fetched: ObjectInfo) -> None:
    """Raise StorageError where a fetched object differs from the listed one."""
    if listed.size_bytes == fetched.size_bytes:
        if listed.etag and fetched.etag:
            is_same = listed.etag == fetched.etag
        else:
            # Headers have whole seconds.
            is_same = int(listed.modified_s) == int(fetched.modified_s)
        if is_same:
            return
    raise StorageError(
        f"{url}: it was replaced after the channel was listed ({_described(listed)} became "
        f"{_described(fetched)}). Start again once nobody writes there."
    )


def _described(info: ObjectInfo) -> str:
    return f"{info.size_bytes:,} bytes, ETag {info.etag or 'unknown'}"


def first_names(paths: Sequence[str]) -> str:
    """Return up to five paths, and the number of others."""
    more = len(paths) - _MOST_NAMED
    return ", ".join(paths[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def warn_of_changes(
    channel: ChannelRequest, before: ChannelListing, config: StorageConfig, *, read: str
) -> None:
    """List a channel again and warn of objects that have changed since the job began.

    `read` says in the message what the job has read of changed objects.
    """
    try:
        changed = list_channel(channel, config).changes_since(before)
    except HeadraceError as error:
        warn_of_unknown_changes(channel.name, error)
        return
    if changed:
        these = "object was" if len(changed) == 1 else "objects were"
        print_status(
            f"warning: channel {channel.name}: {len(changed):,} {these} replaced or "
            f"removed at {before.url} while the job ran, which has read {read}: "
            f"{first_names(changed)}"
        )


def warn_of_unknown_changes(channel: str, error: HeadraceError) -> None:
    """Warn that it is unknown whether a channel changed."""
    print_status(f"channel {channel}: whether it changed meanwhile is not known: {error}")


def _described_listing(listing: ChannelListing | HeadraceError) -> dict[str, Any]:
    """Return what a mount must know: the state of the objects, and whether they are a folder."""
    if not isinstance(listing, ChannelListing):
        return {"identity": None, "is_folder": True, "outside": []}
    is_folder = safe_url(listing.base).rstrip("/") == listing.url.rstrip("/")
    return {
        "identity": listing.identity(), "is_folder": is_folder, "outside": listing.outside()[:1],
    }  # fmt: skip


_READ = "some of them as they were before, or as they are now"


def main(parent: SidecarParent) -> None:
    """List the channels, wait for the job's end, list them again and report changes."""
    declare_leaf()
    request = ChannelsRequest.from_fields(parent.request)
    config = StorageConfig()
    before: dict[str, ChannelListing | HeadraceError] = {}
    with parent.heartbeats():
        for channel in request.channels:
            try:
                before[channel.name] = list_channel(channel, config)
            except HeadraceError as error:
                before[channel.name] = error
    parent.send({"listed": {name: _described_listing(found) for name, found in before.items()}})
    watched = (parent.read() or {}).get("watched", ())
    if parent.read() == END:
        for channel in [each for each in request.channels if each.name in watched]:
            listing = before[channel.name]
            if isinstance(listing, ChannelListing):
                warn_of_changes(channel, listing, config, read=_READ)
            else:
                warn_of_unknown_changes(channel.name, listing)


if __name__ == "__main__":
    run_sidecar(main)
