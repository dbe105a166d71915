"""The process that copies channels, and holds them while a job runs.

`python -m headrace.data.copies.process --parent PID` ends with whoever started it. It reads a
request, one line, and answers with one; then it waits. Told "end" it looks whether objects have
changed since, and says so on stderr; where its input ends it goes at once. It forks nothing, as the
object-store client does not survive that: what it starts are programs of their own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.data.copies.beside import answer_with, begin_beside
from headrace.data.copies.changes import tell_changes
from headrace.data.copies.fetching import AT_ONCE
from headrace.data.copies.folders import CacheFolders
from headrace.data.copies.listing import list_channel
from headrace.data.copies.request import END, CopyAnswer, CopyRequest, Wanted
from headrace.data.copies.trees import HeldTree, Trees
from headrace.data.storage import StorageConfig


def main() -> None:
    """Copy, answer, hold, and look once more."""
    begin_beside(int(sys.argv[2]))
    request = CopyRequest.from_json(sys.stdin.readline())
    config = StorageConfig(in_flight=AT_ONCE)
    held: dict[str, tuple[Wanted, HeldTree]] = {}
    try:
        for wanted in request.channels:
            folders = CacheFolders(Path(wanted.folder))
            trees = Trees(folders, request.limit_bytes, config)
            listing = list_channel(wanted, config)
            held[wanted.name] = wanted, trees.hold(wanted.name, listing)
        answer = CopyAnswer(folders={name: str(tree.folder) for name, (_, tree) in held.items()})
    except HeadraceError as error:
        answer = CopyAnswer.of(error)
    answer_with(answer)
    told = sys.stdin.readline().strip() if answer.kind is None else ""
    for wanted, tree in held.values():
        if told == END:
            tell_changes(wanted, tree.listing, config, read="them as they were before")
        tree.let_go()
    # At once: leaving in order would take the interpreter apart under the client's threads.
    os._exit(0 if answer.kind is None else 1)


if __name__ == "__main__":
    main()
