"""Copies what a script writes for TensorBoard into its run's spool, once, as it is written."""

from __future__ import annotations

from pathlib import Path

from headrace.decide.experiments.event_file_reader import EventFile
from headrace.decide.experiments.spool import SpoolWriter, read_spool


class EventFileImporter:
    """Reads the event files that entries of a spool name, and logs their scalars to the spool.

    Each of these entries says how far the file was read, so that after a restart none comes again.
    """

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._writer = SpoolWriter(spool)
        self._offsets: dict[str, int] = {}
        self._files: dict[str, EventFile] = {}
        self._skipped: dict[str, int] = {}
        self._named: list[str] = []

    def copy(self) -> None:
        """Log what was written since the last call; raises OSError, and what TensorBoard raises."""
        self._look_for_files()
        for path, file in self._files.items():
            for entry in file.read():
                self._writer.add({**entry, "event_file": path, "events": file.count})
        self._writer.flush()

    def _look_for_files(self) -> None:
        for entries, offsets in read_spool(self._spool, self._offsets):
            self._offsets = offsets
            for entry in entries:
                if "events" in entry:
                    self._skipped[entry["event_file"]] = entry["events"]
                elif entry["kind"] == "event_file" and entry["path"] not in self._named:
                    self._named.append(entry["path"])
        for path in self._named:
            if path not in self._files and Path(path).exists():
                skipped = self._skipped.get(path, 0)
                self._files[path] = EventFile(Path(path), self._prefix(path), skipped)

    def _prefix(self, path: str) -> str:
        """Return what a file's names begin with; "" in the first folder."""
        folder, first = Path(path).parent, Path(self._named[0]).parent
        # `add_hparams` makes a folder that is called by the time.
        is_of_hparams = folder.parent == first and folder.name.replace(".", "").isdecimal()
        return "" if folder == first or is_of_hparams else f"{folder.name}/"
