"""The text of docs/records.md, generated from the registry of tables and fields."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.records import system_table
from headrace.records.schema import TABLES

_HEAD = """\
# What is recorded of a run

Written from `headrace.records.schema` and `headrace.records.system_table` by
`python -m headrace.records.documentation > docs/records.md`.

The records of an attempt lie in `records/attempt-<n>/` of the run's folder. While the job runs,
every process writes a ring (`rings/*.ring`) and one process a host moves them into `<host>.sqlite`;
at the end each table becomes one Parquet file. `headrace.open_run(path)` reads them as data frames
in any of these states, also after everything was killed.

Times are nanoseconds of the host's monotonic clock, the same for all its processes; adding
`hosts.unix_offset_ns` takes them to 1970. The unit of a field is in its name.
"""
_KINDS = {"int": "64-bit integer", "float": "64-bit float", "text": "text"}


def documentation() -> str:
    """Return the content of docs/records.md."""
    parts = [_HEAD]
    for table in TABLES:
        rows = [(field.name, _KINDS[field.kind], field.meaning) for field in table.fields]
        parts.append(_section(table.name, table.meaning, rows, _LATER_NOTE if table.later else ""))
    columns = [
        (column.name, "64-bit integer" if column.whole else "32-bit float", column.meaning)
        for column in system_table.COLUMNS
    ]
    parts.append(_section(system_table.NAME, system_table.MEANING, columns, _SYSTEM_NOTE))
    return "\n".join(parts)


_LATER_NOTE = """
Records of an older version may lack this table. It then has these columns and no row.
"""
_SYSTEM_NOTE = """
`{}` stands for the number of a core or a GPU. A column is left out where the host has no such
thing: no GPU, no CPU quota, no memory limit. A value that could not be had is null.
"""


def _section(name: str, meaning: str, rows: Sequence[tuple[str, str, str]], note: str = "") -> str:
    lines = [f"| `{field}` | {kind} | {text} |" for field, kind, text in rows]
    head = f"## {name}\n\nOne row: {meaning}.\n{note}\n| field | kind | meaning |\n|---|---|---|\n"
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(documentation())
