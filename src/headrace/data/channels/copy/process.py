"""The sidecar that copies channels, and locks their trees while a job runs.

`python -m headrace.data.channels.copy.process --parent PID` ends with its parent. It reads a
request, one line, and answers with one; then it waits. On "end" it checks whether objects have
changed since, and reports that on stderr; where its input ends it exits at once. It forks nothing,
as the object-store client does not survive a fork: its children are programs of their own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.data.channels.copy.cache_dir import CacheDir
from headrace.data.channels.copy.fetcher import MAX_REQUESTS
from headrace.data.channels.copy.trees import CacheTrees, LockedTree
from headrace.data.channels.listing import list_channel, warn_of_changes
from headrace.data.channels.messages import END, ChannelRequest, ChannelsAnswer, ChannelsRequest
from headrace.data.channels.sidecar import become_sidecar, write_answer
from headrace.data.storage import StorageConfig


def main() -> None:
    """Copy the channels, answer, hold their locks until the job ends, and check for changes."""
    become_sidecar(int(sys.argv[2]))
    request = ChannelsRequest.from_json(sys.stdin.readline())
    config = StorageConfig(in_flight=MAX_REQUESTS)
    locked: dict[str, tuple[ChannelRequest, LockedTree]] = {}
    try:
        for channel in request.channels:
            folders = CacheDir(Path(channel.folder))
            trees = CacheTrees(folders, request.limit_bytes, config)
            listing = list_channel(channel, config)
            locked[channel.name] = channel, trees.hold(channel.name, listing)
        answer = ChannelsAnswer(
            folders={name: str(tree.folder) for name, (_, tree) in locked.items()}
        )
    except HeadraceError as error:
        answer = ChannelsAnswer.of(error)
    write_answer(answer)
    command = sys.stdin.readline().strip() if answer.kind is None else ""
    for channel, tree in locked.values():
        if command == END:
            warn_of_changes(channel, tree.listing, config, read="them as they were before")
        tree.let_go()
    # At once: an orderly exit would finalise the interpreter under the client's threads.
    os._exit(0 if answer.kind is None else 1)


if __name__ == "__main__":
    main()
