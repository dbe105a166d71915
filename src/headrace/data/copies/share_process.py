"""A process that fetches a share of a channel's small objects, beside the one that copies it."""

from __future__ import annotations

import json
import os
import sys
import traceback
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
    code = 1
    try:
        answer_with(_answer(share))
        code = 0
    finally:
        if code:
            traceback.print_exc()
        # At once: leaving in order would take the interpreter apart under the client's threads.
        os._exit(code)


def _answer(share: Share) -> CopyAnswer:
    try:
        _fetch(share)
    except HeadraceError as error:
        return CopyAnswer.of(error)
    except OSError as error:
        return CopyAnswer.of(told_of_disk(error, share.tree))
    return CopyAnswer(folders={})


def _fetch(share: Share) -> None:
    folders, counts = CacheFolders(Path(share.cache)), Counts()
    known = KnownContents(folders, share.base, is_read=False)
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
