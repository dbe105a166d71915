"""A folder of checkpoints that is synced to another one, by the test's clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.jobs.sync.remote_copy import RemoteCopy
from headrace.jobs.sync.sync_process import FolderSync


class SyncedFolder:
    """What settles does so without anybody waiting."""

    def __init__(self, place: Path, seen_as: Sequence[str] = (), since_ns: int = 0) -> None:
        self.folder, self.messages, self.now_s = place / "checkpoints", list[str](), 0.0
        self.folder.mkdir()
        self.url = str(place / "url")
        self.remote = RemoteCopy(self.url, self.messages.append)
        self.sync = FolderSync(
            self.remote, self.folder, "host", (), self.messages.append, lambda: self.now_s,
            seen_as=seen_as, since_ns=since_ns,
        )  # fmt: skip
        self.sync.begin()

    def passes(self, *after_s: float) -> None:
        for seconds in after_s:
            self.now_s += seconds
            self.sync.one_pass()
