"""The pages of docs/ that are written from the code: `python tools/documentation.py`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from headrace.jobs.options import Option, Panel
from headrace.jobs.spec import job_options
from headrace.observe.doctor.evidence import CRITICAL, FEWEST_STEPS, SERIOUS, WARNING
from headrace.observe.doctor.rules import RULES
from headrace.records import system_table
from headrace.records.schema import TABLES

DOCS = Path(__file__).parents[1] / "docs"
_RECORDS = """\
# What is recorded of a run

Written from `headrace.records.schema` and `headrace.records.system_table` by
`python tools/documentation.py`.

The records of an attempt lie in `records/attempt-<n>/` of the run's folder. While the job runs,
every process writes a ring (`rings/*.ring`) and one process a host moves them into `<host>.sqlite`;
at the end each table becomes one Parquet file. `headrace.open_run(path)` reads them as data frames
in any of these states, also after everything was killed.

Times are nanoseconds of the host's monotonic clock, the same for all its processes; adding
`hosts.unix_offset_ns` takes them to 1970. The unit of a field is in its name.
"""
_KINDS = {"int": "64-bit integer", "float": "64-bit float", "text": "text"}


def records_page() -> str:
    """Return the text of docs/records.md."""
    parts = [_RECORDS]
    for table in TABLES:
        rows = [(field.name, _KINDS[field.kind], field.meaning) for field in table.fields]
        parts.append(_table(table.name, table.meaning, rows, _LATER_NOTE if table.later else ""))
    columns = [
        (column.name, "64-bit integer" if column.whole else "32-bit float", column.meaning)
        for column in system_table.COLUMNS
    ]
    parts.append(_table(system_table.NAME, system_table.MEANING, columns, _SYSTEM_NOTE))
    return "\n".join(parts)


_LATER_NOTE = """
Records of an older version may lack this table. It then has these columns and no row.
"""
_SYSTEM_NOTE = """
`{}` stands for the number of a core or a GPU. A column is left out where the host has no such
thing: no GPU, no CPU quota, no memory limit. A value that could not be had is null.
"""


def _table(name: str, meaning: str, rows: Sequence[tuple[str, str, str]], note: str = "") -> str:
    lines = [f"| `{field}` | {kind} | {text} |" for field, kind, text in rows]
    head = f"## {name}\n\nOne row: {meaning}.\n{note}\n| field | kind | meaning |\n|---|---|---|\n"
    return head + "\n".join(lines) + "\n"


_RULES = f"""\
# The doctor's rules

Written from `headrace.observe.doctor.rules` by `python tools/documentation.py`.

`headrace doctor` evaluates them all. A finding is a warning from {WARNING:.0%} of the run's time
after start-up on, serious from {SERIOUS:.0%}, critical from {CRITICAL:.0%}; what a rule says
otherwise stands with it. With fewer than {FEWEST_STEPS} steps after the warm-up only the rules
about other time than that of steps have findings. Findings come worst first, and one that follows
from another comes after it.

With `--rules sagemaker` the rules of SageMaker Debugger are evaluated in their place, by their
names and thresholds: docs/diagnosis.md.
"""


def rules_page() -> str:
    """Return the text of docs/rules.md."""
    return "\n".join([_RULES, *(_rule(rule) for rule in sorted(RULES))])


def _rule(rule: str) -> str:
    title, _, text = (inspect.getdoc(RULES[rule]) or "").partition("\n")
    return f"## {rule}\n\n{title}\n{text.rstrip()}\n"


_OPTIONS = """\
# Options of a job

Written from `headrace.jobs.spec` by `python tools/documentation.py`.

An option has the same meaning in each place: a flag of `headrace run`, before the script; a key of
a job file; an argument of `headrace.Estimator`. torchrun's own flags work, too. Where the column of
keys and arguments is empty, [the Estimator's page](estimator.md) says what there is instead.
"""


def options_page() -> str:
    """Return the text of docs/options.md."""
    return "\n".join([_OPTIONS, *(_panel(panel) for panel in get_args(Panel))])


def _panel(panel: Panel) -> str:
    rows = [_row(each) for each in job_options().values() if each.panel == panel]
    head = "| flag | key, argument | what it is |\n|---|---|---|\n"
    return f"## {panel}\n\n{head}" + "".join(rows)


def _row(each: Option) -> str:
    again = ", may be repeated" if each.kind.repeats else ""
    argument = f"`{each.argument}`" if each.argument is not None else ""
    return f"| `{each.flag}`{again} | {argument} | {each.help} |\n"


PAGES = {"records.md": records_page, "rules.md": rules_page, "options.md": options_page}
"""The pages by their files' names."""

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
