"""Copies what a script writes for TensorBoard into its run's spool, once, as it is written."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headrace.decide.experiments.event_file_reader import EventFile
from headrace.decide.experiments.spool import Entry, SpoolWriter, now_ms, read_spool

_RANK_0_MS = 60_000
"""How long the first file of rank 0 is waited for: in some scripts another rank writes alone."""

_TIME = re.compile(r"\d{9,}(?:\.\d+)?")
"""The names of the folders that `add_hparams` makes: seconds since 1970."""


@dataclass(frozen=True, slots=True)
class _NamedFile:
    """An event file that a script has opened.

    Attributes:
        start: Which attempt of the run wrote it, and after how many of torchrun's restarts.
        at_ms: When it was opened.
    """

    path: Path
    start: tuple[int, int]
    rank: int
    at_ms: int

    @classmethod
    def of(cls, entry: Entry) -> Self:
        start = entry.get("attempt", 0), entry.get("restart", 0)
        return cls(Path(entry["path"]), start, entry.get("rank", 0), entry["at_ms"])


class EventFileImporter:
    """Reads the event files that entries of a spool name, and logs their scalars to the spool.

    Each entry that it logs says how far the file was read, so that after a restart none comes
    again, and what its names begin with, which stays so.
    """

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._writer = SpoolWriter(spool)
        self._offsets: dict[str, int] = {}
        self._files: dict[Path, EventFile] = {}
        self._skipped: dict[str, int] = {}
        self._named: dict[Path, _NamedFile] = {}
        self._prefixes: dict[Path, str] = {}  # of names, by the folder of the files

    def copy(self, *, is_last: bool = False) -> None:
        """Log what was written since the last call; raises OSError, and what TensorBoard raises.

        The files of other ranks are read once rank 0 has opened one, a minute later, or with the
        last call.
        """
        self._look_for_files(is_last=is_last)
        for path, file in self._files.items():
            prefix = self._prefixes[path.parent]
            for entry in file.read():
                self._writer.add({
                    **entry, "event_file": str(path), "events": file.count, "prefix": prefix,
                })  # fmt: skip
        self._writer.flush()

    def _look_for_files(self, *, is_last: bool) -> None:
        for entries, offsets in read_spool(self._spool, self._offsets):
            self._offsets = offsets
            for entry in entries:
                if "events" in entry:
                    self._skipped[entry["event_file"]] = entry["events"]
                    if "prefix" in entry:  # not that of an older version
                        folder = Path(entry["event_file"]).parent
                        self._prefixes.setdefault(folder, entry["prefix"])
                elif entry["kind"] == "event_file":
                    named = _NamedFile.of(entry)
                    self._named.setdefault(named.path, named)
        for named in list(self._named.values()):
            if named.path in self._files or not named.path.exists():
                continue
            prefix = self._prefix(named, is_last=is_last)
            if prefix is not None:
                skipped = self._skipped.get(str(named.path), 0)
                self._files[named.path] = EventFile(named.path, prefix, skipped)

    def _prefix(self, named: _NamedFile, *, is_last: bool) -> str | None:
        """Return what a file's names begin with: "" in the first folder of each start of the job.

        So a series goes on after a restart, though loggers give each start a folder of its own. In
        another folder it is as much of the path as sets it apart from those opened before. None
        where the first folder is not known yet.
        """
        folder = named.path.parent
        if folder not in self._prefixes:
            first = self._first_folder(named.start, is_last=is_last)
            if first is None:
                return None
            is_of_hparams = folder.parent == first and _TIME.fullmatch(folder.name) is not None
            is_first = folder == first or is_of_hparams
            taken = {
                self._prefixes.get(each.path.parent, "")
                for each in self._named.values()
                if each.start == named.start
            }
            self._prefixes[folder] = "" if is_first else _distinct_end(folder, first, taken)
        return self._prefixes[folder]

    def _first_folder(self, start: tuple[int, int], *, is_last: bool) -> Path | None:
        """Return the first folder of a start, that of the lowest rank; None: rank 0 may yet come.

        Ranks that open theirs later than a minute after the first one do not count, so that it
        stays the same.
        """
        found = [each for each in self._named.values() if each.start == start]
        until_ms = min(each.at_ms for each in found) + _RANK_0_MS
        in_time = [each for each in found if each.at_ms <= until_ms]
        first = min(in_time, key=lambda each: each.rank)
        is_known = first.rank == 0 or now_ms() > until_ms or is_last
        return first.path.parent if is_known else None


def _distinct_end(folder: Path, first: Path, taken: AbstractSet[str]) -> str:
    """Return as many last parts of a folder's path as are no end of the first one's, nor taken.

    Such as `val/`, and beside fold_0/version_0, which is the first, `fold_1/version_0/`.
    """
    parts = folder.parts[1:]  # without the root
    for count in range(1, len(parts)):
        end = f"{'/'.join(parts[-count:])}/"
        if first.parts[-count:] != parts[-count:] and end not in taken:
            return end
    return f"{'/'.join(parts)}/"
