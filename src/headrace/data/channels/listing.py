"""The objects of a channel, each with a path on this host, and warnings of changed objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

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

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelListing:
    """The objects of a channel for this host."""

    base: str  # the URL that their paths are below; may contain secrets
    url: str  # the channel's, without secrets
    objects: tuple[ObjectInfo, ...]  # in the order of their keys
    folders: tuple[str, ...]  # all their folders, parents first

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


def content_key(info: ObjectInfo) -> tuple[str, str, int]:
    """Return what changes when an object's content does: path, ETag or time, and size in bytes."""
    return info.path, info.etag or f"@{info.modified_s}", info.size_bytes


def list_channel(channel: ChannelRequest, config: StorageConfig) -> ChannelListing:
    """List a channel's share for this host; StorageError: it cannot be listed.

    UsageError: there are no objects, or one cannot be a file in a folder.
    """
    base, found = _list_objects(channel, config)
    named = f"--channel {channel.name}={safe_url(channel.url)}"
    if not found:
        raise UsageError(f"{named}: there is no object there, nor any below it. Check the URL.")
    files, folders = _files_and_folders(named, found)
    share = files[channel.number :: channel.of]
    if not share:
        raise UsageError(
            f"{named}: {len(files)} objects cannot be shared by {channel.of} hosts, each of which "
            "wants one. Use fewer hosts, or FullyReplicated."
        )
    return ChannelListing(
        base=base, url=safe_url(channel.url), objects=tuple(share), folders=tuple(folders)
    )


def _list_objects(channel: ChannelRequest, config: StorageConfig) -> tuple[str, list[ObjectInfo]]:
    """Return (base URL, objects) of a folder, or of a single object."""
    url = channel.url
    location = parse_url(url)
    if location.kind == "memory":
        raise UsageError(
            f"{location.url}: what lies in a process's memory is no channel of another. Name a "
            "URL of a bucket, or a path."
        )
    unlisted: StorageError | None = None
    try:
        found = list(open_store(url, config=config, client="direct").list())
    except StorageError as error:
        if NO_FILES_NAME in str(error):
            raise UsageError(
                f"--channel {channel.name}={safe_url(url)}: {NO_FILES_NAME}. Rename the object, or "
                "name a folder beside it."
            ) from None
        if location.kind != "http":  # a plain web server has no listing
            raise
        found, unlisted = [], error
    if found or not location.prefix:
        return url, found
    folder, name = split_url(url)
    try:
        only = open_store(folder, config=config, client="direct").head(name)
    except NotFoundError:
        if unlisted is not None:
            raise unlisted from None
        return url, []
    return folder, [only]


def _files_and_folders(
    named: str, found: Sequence[ObjectInfo]
) -> tuple[list[ObjectInfo], list[str]]:
    """Return the objects that are files, and the folders that they need."""
    needed: dict[str, str] = {}
    for info in found:
        parts = info.path.split("/")
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
        if info.size_bytes == 0 and (info.path in needed or info.path in files):
            continue
        inner = needed.get(info.path)
        if inner is not None:
            raise UsageError(
                f"{named}: {info.path!r} is an object, and a folder too ({inner!r} lies in it). "
                "No disk can hold both: rename one, or name a folder beside them."
            )
        files[info.path] = info
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


_READ = "some of them as they were before, or as they are now"


def main(parent: SidecarParent) -> None:
    """List the channels, wait for the job's end, list them again and report changes."""
    declare_leaf()
    request = ChannelsRequest.from_fields(parent.request)
    config = StorageConfig()
    before: dict[str, ChannelListing | HeadraceError] = {}
    for channel in request.channels:
        try:
            before[channel.name] = list_channel(channel, config)
        except HeadraceError as error:
            before[channel.name] = error
    if parent.read() == END:
        for channel in request.channels:
            listing = before[channel.name]
            if isinstance(listing, ChannelListing):
                warn_of_changes(channel, listing, config, read=_READ)
            else:
                warn_of_unknown_changes(channel.name, listing)


if __name__ == "__main__":
    run_sidecar(main)
