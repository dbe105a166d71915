"""The text of docs/options.md, from the options: python -m headrace.jobs.documentation."""

from __future__ import annotations

import sys
from typing import get_args

from headrace.jobs.options import Option, Panel
from headrace.jobs.spec import job_options

_INTRODUCTION = """\
# Options of a job

Written from `headrace.jobs.spec` by `python -m headrace.jobs.documentation > docs/options.md`.

An option has the same meaning in each place: a flag of `headrace run`, before the script; a key of
a job file; an argument of `headrace.Estimator`. torchrun's own flags work, too. Where the column of
keys and arguments is empty, [the Estimator's page](estimator.md) says what there is instead.
"""


def documentation() -> str:
    """Return the text of docs/options.md."""
    return "\n".join([_INTRODUCTION, *(_section(panel) for panel in get_args(Panel))])


def _section(panel: Panel) -> str:
    rows = [_row(each) for each in job_options().values() if each.panel == panel]
    head = "| flag | key, argument | what it is |\n|---|---|---|\n"
    return f"## {panel}\n\n{head}" + "".join(rows)


def _row(each: Option) -> str:
    again = ", may be repeated" if each.kind.repeats else ""
    argument = f"`{each.argument}`" if each.argument is not None else ""
    return f"| `{each.flag}`{again} | {argument} | {each.help} |\n"


if __name__ == "__main__":
    sys.stdout.write(documentation())
