"""The sidecar that copies channels, and locks their trees while a job runs.

`python -m headrace.data.channels.copy.process --parent PID` ends with whoever started it. It reads
a request, one line, and answers with one; then it waits. On "end" it looks whether objects have
changed since, and says so on stderr; where its input ends it goes at once. It forks nothing, as the
object-store client does not survive that: what it starts are programs of their own.
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
    """Copy, answer, hold, and look once more."""
    become_sidecar(int(sys.argv[2]))
    request = ChannelsRequest.from_json(sys.stdin.readline())
    config = StorageConfig(in_flight=MAX_REQUESTS)
    held: dict[str, tuple[ChannelRequest, LockedTree]] = {}
    try:
        for wanted in request.channels:
            folders = CacheDir(Path(wanted.folder))
            trees = CacheTrees(folders, request.limit_bytes, config)
            listing = list_channel(wanted, config)
            held[wanted.name] = wanted, trees.hold(wanted.name, listing)
        answer = ChannelsAnswer(
            folders={name: str(tree.folder) for name, (_, tree) in held.items()}
        )
    except HeadraceError as error:
        answer = ChannelsAnswer.of(error)
    write_answer(answer)
    told = sys.stdin.readline().strip() if answer.kind is None else ""
    for wanted, tree in held.values():
        if told == END:
            warn_of_changes(wanted, tree.listing, config, read="them as they were before")
        tree.let_go()
    # At once: leaving in order would take the interpreter apart under the client's threads.
    os._exit(0 if answer.kind is None else 1)


if __name__ == "__main__":
    main()
