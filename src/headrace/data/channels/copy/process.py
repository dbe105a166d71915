"""The sidecar that copies channels, and locks their trees while a job runs.

It answers with the copies' folders; then it waits. On `END` it checks whether objects have changed
since, and reports that on stderr; where its input ends it exits at once. It forks nothing, as the
object-store client does not survive a fork: its children are programs of their own.
"""

from __future__ import annotations

from pathlib import Path

from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.channels.copy.cache_dir import CacheDir
from headrace.data.channels.copy.fetcher import MAX_REQUESTS
from headrace.data.channels.copy.trees import CacheTrees, LockedTree
from headrace.data.channels.listing import list_channel, warn_of_changes
from headrace.data.channels.sidecar_client import END, ChannelRequest, ChannelsRequest
from headrace.data.storage import StorageConfig, declare_leaf


def main(parent: SidecarParent) -> None:
    """Copy the channels, answer, hold their locks until the job ends, and check for changes."""
    declare_leaf()
    request = ChannelsRequest.from_fields(parent.request)
    config = StorageConfig(in_flight=MAX_REQUESTS)
    locked: list[tuple[ChannelRequest, LockedTree]] = []
    try:
        for channel in request.channels:
            trees = CacheTrees(CacheDir(Path(channel.folder)), request.limit_bytes, config)
            listing = list_channel(channel, config)
            locked.append((channel, trees.hold(channel.name, listing)))
        parent.send({"folders": {channel.name: str(tree.folder) for channel, tree in locked}})
        if parent.read() == END:
            for channel, tree in locked:
                warn_of_changes(channel, tree.listing, config, read="them as they were before")
    finally:
        for _, tree in locked:
            tree.let_go()


if __name__ == "__main__":
    run_sidecar(main)
