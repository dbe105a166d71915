"""The sidecar that reads metrics from the ranks' logs into the run's metrics.jsonl.

It ends when its input closes, after a last look at all logs.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.core.console import print_status
from headrace.core.files import append_whole
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.decide.experiments.spool import SpoolWriter
from headrace.records.layout import STEP_GROUP

_POLL_S = 0.2
_LONGEST_LINE = 64 * 1024
_STREAMS = {".stdout": "standard output", ".stderr": "standard error"}  # by suffixes of logs
_LINE = re.compile(rb"[^\r\n]*[\r\n]")  # \r ends the lines of progress bars


class _Log:
    """A log file, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._partial_line = b""

    def lines(self, *, to_the_end: bool) -> Iterator[str]:
        text = b""
        with suppress(FileNotFoundError), self.path.open("rb") as file:  # a link's comes later
            file.seek(self._read)
            text = file.read()
            self._read += len(text)
        text = self._partial_line + text + (b"\n" if to_the_end else b"")
        end = 0
        for match in _LINE.finditer(text):
            end = match.end()
            yield match[0].decode(errors="replace")
        self._partial_line = text[end:][-_LONGEST_LINE:]


class _LogScanner:
    def __init__(self, request: Mapping[str, Any]) -> None:
        self._logs = Path(request["logs"])
        self._file = Path(request["file"])
        self._attempt = request["attempt"]
        self._first_source = request["first_source"]
        self._spool = SpoolWriter(Path(request["spool"])) if request["spool"] else None
        self._metrics = {name: re.compile(text) for name, text in request["metrics"].items()}
        self._logs_by_path: dict[Path, _Log] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._not_numeric: Counter[str] = Counter()
        self._unwritten: list[dict[str, Any]] = []  # found, but the disk was full

    def look(self, *, to_the_end: bool = False) -> None:
        rows = self._unwritten  # what is found stays there until it is written
        for path in sorted(self._logs.rglob("*.std*")):
            log = self._logs_by_path.setdefault(path, _Log(path))
            for line in log.lines(to_the_end=to_the_end):
                rows += self._matches(path.stem, line)
        if rows:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            with self._file.open("ab") as file:
                append_whole(file.fileno(), lines.encode())
            self._unwritten = []
            self._track(rows)

    def _track(self, rows: list[dict[str, Any]]) -> None:
        """Have MLflow get the values too: the first log's under their name, others beside it.

        Where no step is printed, those of an attempt go on after those of the one before.
        """
        if self._spool is None:
            return
        for row in rows:
            is_first = row["source"] == self._first_source
            name = row["name"] if is_first else f"{row['name']}/{row['source']}"
            is_counted = STEP_GROUP not in self._metrics[row["name"]].groupindex
            self._spool.add({
                "kind": "metrics", "at_ms": round(row["time_s"] * 1000),
                "step": None if is_counted else row["step"], "values": {name: row["value"]},
            })  # fmt: skip
        self._spool.flush()

    def report_missing(self) -> None:
        seen = {name for name, _ in self._counts}
        logged = {path.suffix for path in self._logs_by_path}
        left_out = " and ".join(text for suffix, text in _STREAMS.items() if suffix not in logged)
        more = f"; {left_out} is in no log (--tee 3 puts it there)" if logged and left_out else ""
        for name, expression in self._metrics.items():
            if name not in seen:
                print_status(
                    f"--metric {name}: no rank printed what {expression.pattern!r} finds{more}"
                )
            if self._not_numeric[name]:
                print_status(
                    f"--metric {name}: {self._not_numeric[name]} values are no numbers, "
                    "and left out"
                )

    def _matches(self, source: str, line: str) -> Iterator[dict[str, Any]]:
        for name, expression in self._metrics.items():
            for match in expression.finditer(line):
                named = expression.groupindex.get(STEP_GROUP)
                value = match[next(n for n in (1, 2) if n != named)]
                try:
                    number = float(value)
                except (TypeError, ValueError):
                    self._not_numeric[name] += 1
                    continue
                step = _whole(match[STEP_GROUP]) if named else None
                counted = self._counts[name, source]
                self._counts[name, source] += 1
                yield {
                    "attempt": self._attempt, "source": source, "name": name, "value": number,
                    "step": counted if step is None else step, "time_s": time.time(),
                }  # fmt: skip


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def main(parent: SidecarParent) -> None:
    """Scan the logs until the parent closes its end."""
    scanner = _LogScanner(parent.request)
    while not parent.wait(_POLL_S):
        with suppress(OSError):  # a full disk, or a log that is being created
            scanner.look()
    try:
        scanner.look(to_the_end=True)
    except OSError as error:
        print_status(f"--metric: what ranks printed last cannot be kept: {error}")
    scanner.report_missing()


if __name__ == "__main__":
    run_sidecar(main, dies_by=None)
