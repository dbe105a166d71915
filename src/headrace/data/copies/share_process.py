"""A process that fetches a share of a channel's small objects, beside the one that copies it."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import wait
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.data.copies.beside import answer_with, begin_beside
from headrace.data.copies.fetching import AT_ONCE, Fetcher
from headrace.data.copies.folders import CacheFolders, told_of_disk
from headrace.data.copies.known import KnownContents
from headrace.data.copies.progress import Counts
from headrace.data.copies.request import CopyAnswer
from headrace.data.copies.sharing import Share
from headrace.data.storage import StorageConfig
from headrace.data.storage.background import submit

_TELL_EVERY_S = 0.2


def main() -> None:
    """Fetch, tell what has come, and answer."""
    begin_beside(int(sys.argv[2]))
    share = Share.from_json(sys.stdin.readline())
    try:
        _fetch(share)
        answer = CopyAnswer(folders={})
    except HeadraceError as error:
        answer = CopyAnswer.of(error)
    answer_with(answer)
    # At once: leaving in order would take the interpreter apart under the client's threads.
    os._exit(0 if answer.kind is None else 1)


def _fetch(share: Share) -> None:
    folders, counts = CacheFolders(Path(share.cache)), Counts()
    try:
        known = KnownContents(folders, share.base)
    except OSError as error:
        raise told_of_disk(error, share.cache) from error
    config = StorageConfig(in_flight=AT_ONCE)
    fetcher = Fetcher(share.base, share.tree, folders, known, counts, config)
    work = submit(fetcher.fetch(share.objects))
    told_objects, told_bytes, is_done = 0, 0, False
    while not is_done:
        is_done = bool(wait([work], timeout=_TELL_EVERY_S).done)
        objects, size_bytes = counts.fetched, counts.fetched_bytes
        sys.stdout.write(f"{json.dumps([objects - told_objects, size_bytes - told_bytes])}\n")
        sys.stdout.flush()
        told_objects, told_bytes = objects, size_bytes
    work.result()


if __name__ == "__main__":
    main()
