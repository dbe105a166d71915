"""The text of docs/rules.md, from the rules: python -m headrace.observe.doctor.documentation."""

from __future__ import annotations

import inspect
import sys

from headrace.observe.doctor.evidence import CRITICAL, FEWEST_STEPS, SERIOUS, WARNING
from headrace.observe.doctor.rules import RULES

_INTRODUCTION = f"""\
# The doctor's rules

Written from `headrace.observe.doctor.rules`, a file each, by
`python -m headrace.observe.doctor.documentation > docs/rules.md`.

`headrace doctor` evaluates them all. A finding is a warning from {WARNING:.0%} of step time lost
on, serious from {SERIOUS:.0%}, critical from {CRITICAL:.0%}; what a rule says otherwise stands
with it. With fewer than {FEWEST_STEPS} training steps after the warm-up nothing is said. Findings
come worst first, and one that follows from another comes after it.

With `--rules sagemaker` the rules of SageMaker Debugger are evaluated in their place, by their
names and thresholds: docs/diagnosis.md.
"""


def documentation() -> str:
    """Return the text of docs/rules.md."""
    return "\n".join([_INTRODUCTION, *(_section(rule) for rule in sorted(RULES))])


def _section(rule: str) -> str:
    title, _, text = (inspect.getdoc(RULES[rule]) or "").partition("\n")
    return f"## {rule}\n\n{title}\n{text.rstrip()}\n"


if __name__ == "__main__":
    sys.stdout.write(documentation())
