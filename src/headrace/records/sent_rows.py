"""Rows that other hosts have sent: files beside the rings, which the collector takes in.

The job's driver appends the lines of other hosts' outboxes as they arrive, each with the number of
its host and the difference of the two clocks. Times become those of this host's clock, and process
ids those that no other host has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from headrace.core.errors import RecordsError
from headrace.core.files import append_whole
from headrace.records import system_table
from headrace.records.host_place import job_pid
from headrace.records.layout import FILE_MODE
from headrace.records.outbox import SentLine
from headrace.records.schema import HOSTS, PROCESSES, TABLES_BY_NUMBER, Table

SUFFIX = ".rows"
_FILE_BYTES = 4 << 20  # then the next file is begun, and this one can be removed
_READ_BYTES = 8 << 20  # in one drain; the rest follows in the next
_TYPES = {"int": (int,), "float": (int, float), "text": (str,)}
_UNIX_OFFSET, _HOST = HOSTS.columns.index("unix_offset_ns"), PROCESSES.columns.index("host")


class SentRowsWriter:
    """The writer of the files of one host's rows; one process writes them.

    Args:
        folder: Of the rings.
        host: The host's number in `hosts`.
    """

    def __init__(self, folder: Path, host: int) -> None:
        self._folder, self._host = folder, host
        earlier = [_sequence(path) for path in folder.glob(f"{_stem(host)}*{SUFFIX}")]
        self._number = max(earlier, default=0) + 1

    def add(self, lines: Sequence[SentLine], clock_offset_ns: int) -> None:
        """Append lines; OSError, such as on a full disk: none of them is there.

        Args:
            lines: Of the host's outbox.
            clock_offset_ns: Added to the host's monotonic clock, it gives this host's.
        """
        head = f'{{"host": {self._host}, "clock_offset_ns": {clock_offset_ns}, "sent": '
        content = "".join(f"{head}{line.text}}}\n" for line in lines).encode()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{_stem(self._host)}{self._number:06}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(path, flags, FILE_MODE)
        try:
            append_whole(descriptor, content)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size >= _FILE_BYTES:
            self._number += 1


def _stem(host: int) -> str:
    return f"host-{host}-"


def _sequence(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


@dataclass(slots=True)
class SentRows:
    """What one read of a file gave, in the order in which it was sent."""

    rows: dict[int, tuple[Table, list[tuple[Any, ...]]]] = field(default_factory=dict)
    system: list[tuple[Sequence[str], Sequence[float | None]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class SentRowsReader:
    """The reader of one file, from a position in bytes on."""

    def __init__(self, path: Path, position: int) -> None:
        self.path = path
        self.position = position

    def read(self) -> SentRows | None:
        """Return the rows of the complete lines after the position, which moves on; None: no line.

        At most 8 MiB are read, or one line. A line that cannot be read is a fault, and passed over.
        OSError: the file cannot be read, such as one that was removed.
        """
        content = b"" if self.is_at_end() else self._next_lines()
        if not content:
            return None
        self.position += len(content)
        found = SentRows()
        for line in content.splitlines():
            try:
                _add_line(json.loads(line), found)
            except (ValueError, KeyError, TypeError, RecordsError) as error:
                found.faults.append(f"{self.path.name}: a line of another host is lost: {error}")
        return found

    def is_at_end(self) -> bool:
        """Return whether nothing follows the position."""
        return self.path.stat().st_size <= self.position

    @property
    def is_followed(self) -> bool:
        """Whether its host has a later file, so that nothing is added to this one."""
        stem = self.path.stem.rpartition("-")[0]
        return self.path.with_name(f"{stem}-{_sequence(self.path) + 1:06}{SUFFIX}").exists()

    def _next_lines(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.position)
            content = file.read(_READ_BYTES)
            if len(content) == _READ_BYTES and b"\n" not in content:
                content += file.readline()
        return content[: content.rfind(b"\n") + 1]


def sent_row_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, in the order of their hosts and times."""
    return iter(sorted(folder.glob(f"host-*{SUFFIX}")))


def _add_line(line: dict[str, Any], found: SentRows) -> None:
    host, offset_ns, sent = line["host"], line["clock_offset_ns"], line["sent"]
    read: list[tuple[Table, list[tuple[Any, ...]]]] = []
    for number, rows in sent["tables"].items():
        table = TABLES_BY_NUMBER[int(number)]
        read.append((table, [_row_here(table, row, host, offset_ns) for row in rows]))
    system = [
        (columns, _sample_here(columns, row, host, offset_ns)) for columns, row in sent["system"]
    ]
    for table, rows in read:
        found.rows.setdefault(table.number, (table, []))[1].extend(rows)
    found.system += system


def _row_here(table: Table, row: list[Any], host: int, offset_ns: int) -> tuple[Any, ...]:
    """Return a row with this host's times, and the process ids and host number of the job."""
    if len(row) != len(table.fields):
        raise RecordsError(f"{table.name} has {len(table.fields)} columns, and not {len(row)}")
    for value, column in zip(row, table.fields, strict=True):
        if not isinstance(value, _TYPES[column.kind]):
            raise RecordsError(f"{table.name}.{column.name} cannot be {value!r}")
    for index in table.time_indexes:
        if row[index] > 0:  # else it is unknown
            row[index] += offset_ns
    for index in table.pid_indexes:
        row[index] = job_pid(row[index], host)
    if table is HOSTS:
        row[_UNIX_OFFSET] -= offset_ns
    if table is PROCESSES:
        row[_HOST] = host
    return tuple(row)


def _sample_here(
    columns: Sequence[str], row: Sequence[float | None], host: int, offset_ns: int
) -> list[float | None]:
    """Return a row of `system` with this host's time, and the number of its host."""
    for name, value in zip(columns, row, strict=True):
        system_table.column_description(name)  # KeyError: a column of another version
        if not isinstance(value, (int, float, NoneType)):
            raise RecordsError(f"{system_table.NAME}.{name} cannot be {value!r}")
    values = dict(zip(columns, row, strict=True))
    taken_ns = values[system_table.TIME_COLUMN]
    values[system_table.TIME_COLUMN] = None if taken_ns is None else int(taken_ns) + offset_ns
    values[system_table.HOST_COLUMN] = host
    return [values[name] for name in columns]
