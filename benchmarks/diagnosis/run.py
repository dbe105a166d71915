"""How often the doctor is right: scripts with one planted bottleneck each, and healthy ones.

    python benchmarks/diagnosis/run.py
    python benchmarks/diagnosis/run.py --unseen

Each script runs through `headrace run`, which knows nothing of what is planted. Right is: the
planted bottleneck's rule is ranked first, with the marked line where one is at fault; and nothing
serious is found in a healthy script. Writes docs/diagnosis.md, unless only some scripts are run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from cases import CASES, SCRIPTS, Case  # noqa: E402 - they stand beside this script
from unseen_cases import UNSEEN  # noqa: E402 - as above

from cpu_steal import MOST_STOLEN, TRIES, run_undisturbed  # noqa: E402 - as above
from report import Row, write_section  # noqa: E402 - as above

PAGE = HERE.parents[1] / "docs" / "diagnosis.md"
LONGEST_S = 180
STOLEN: list[float] = []
"""What the host withheld from each run that counts, as a share of the CPU time it wanted."""
ALARMING = {"serious", "critical"}
RIGHT = """
`headrace run` runs each script unmodified and diagnoses it at its end. **Right** means: the
expected rule is ranked first, and, where a line is at fault (marked in the script by a comment
`# at fault`), the finding names that line. A control is right if no finding is serious or
critical. Without a GPU the accelerator is emulated by sleeping in the model's forward, whose two
small layers compute in one thread, as a device has no threads that compete with the workers for
the host's cores. Scripts whose fault only a device shows are then not run, and listed as such.
"""
TUNED = """
The rules were tuned on these scripts, and some scripts were made heavier where their fault had
too little effect: the share says that the doctor knows these faults, not how it does on unseen
scripts.
"""
UNTUNED = """
These scripts were written by someone who knew the names of the rules, but neither their
thresholds nor their code, after the rules were done. "First run on unseen scripts" above is the
result before anything was changed because of them.
"""
REPEATED = f"""
Runs from which the host withheld more than {MOST_STOLEN:.0%} of the CPU time are repeated, up to
{TRIES} times in all; the calmest one counts.
"""


@dataclass(frozen=True)
class Suite:
    """Scripts that are judged together.

    Attributes:
        title: Of the section of docs/diagnosis.md.
        cases: The scripts.
        flag: Of this script, to choose them.
        about: How the scripts came about.
    """

    title: str
    cases: tuple[Case, ...]
    flag: str
    about: str


KNOWN = Suite("Diagnosis", CASES, "", TUNED)
HELD_OUT = Suite("Scripts that the rules were not tuned on", UNSEEN, " --unseen", UNTUNED)


@dataclass(frozen=True)
class Outcome:
    """What the doctor reported of a script.

    Attributes:
        case: The script.
        findings: As in diagnosis.json.
        sentence: The verdict.
    """

    case: Case
    findings: list[dict[str, Any]]
    sentence: str

    @property
    def first(self) -> str:
        """The rule that is ranked first; "" where there is none."""
        return self.findings[0]["rule"] if self.findings else ""

    @property
    def rule_right(self) -> bool:
        """Whether that is the expected rule; of a control, whether nothing serious was found."""
        if self.case.rule is None:
            return not any(finding["severity"] in ALARMING for finding in self.findings)
        return self.first in {self.case.rule, self.case.also}

    @property
    def line(self) -> str:
        """The line that the first finding names: file and number; "" where none."""
        cause = self.findings[0]["cause"] if self.findings else None
        return f"{Path(cause['file']).name}:{cause['line']}" if cause and cause["line"] else ""

    @property
    def line_right(self) -> bool | None:
        """Whether the line is right; None where none is at fault."""
        if not self.case.lines:
            return None
        return self.line in {f"{self.case.script.name}:{line}" for line in self.case.lines}

    @property
    def right(self) -> bool:
        """Whether the diagnosis is right."""
        return self.rule_right and self.line_right is not False

    def row(self) -> str:
        """Return the row of the table."""
        expected = self.case.rule or "healthy"
        if self.case.also:
            expected += f" or {self.case.also}"
        line = {None: "", True: "yes", False: f"no: {self.line or 'none'}"}[self.line_right]
        found = self.first or "nothing"
        answer = "yes" if self.right else "**no**"
        return (
            f"| `{self.case.name}` | {self.case.style} | {expected} | {found} | {line} | {answer} |"
        )


def main() -> None:
    """Run the scripts and print how often the doctor was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    parser.add_argument("--unseen", action="store_true", help="those it was not tuned on")
    options = parser.parse_args()
    suite = HELD_OUT if options.unseen else KNOWN
    unknown = set(options.only) - {case.name for case in suite.cases}
    if unknown:
        parser.error(f"no such script: {', '.join(sorted(unknown))}")
    chosen = [case for case in suite.cases if not options.only or case.name in options.only]
    left_out = [case for case in chosen if case.on_device and not torch.cuda.is_available()]
    for case in left_out:
        chosen.remove(case)
        print(f"{case.name} is not run: it shows on a CUDA device alone", flush=True)
    outcomes = []
    for number in range(options.rounds):
        for case in chosen:
            began = time.perf_counter()
            outcome = diagnosed(case, options.keep, number)
            outcomes.append(outcome)
            print(outcome.row(), flush=True)
            print(f"    {time.perf_counter() - began:.0f} s. {outcome.sentence}", flush=True)
    right = sum(outcome.right for outcome in outcomes)
    print(f"{right} of {len(outcomes)} right")
    if not options.only:
        publish(suite, outcomes, left_out, options.rounds)


def diagnosed(case: Case, keep: Path | None, number: int) -> Outcome:
    """Run a script, while the host leaves it its cores, and return its diagnosis.

    Args:
        case: The script.
        keep: Where its run stays; None: nowhere.
        number: Of the round.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        diagnosis = run_undisturbed(
            lambda tried: recorded(case, folder / f"{case.name}-{number}-{tried}"), STOLEN
        )
    return Outcome(case, diagnosis["findings"], diagnosis["verdict"]["sentence"])


def recorded(case: Case, folder: Path) -> dict[str, Any]:
    """Run a script through `headrace run`; return its diagnosis."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", str(folder),
         *case.flags, str(case.script)],
        capture_output=True, text=True, check=False, timeout=LONGEST_S,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{case.name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    diagnosis: dict[str, Any] = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8"))
    return diagnosis


def publish(suite: Suite, outcomes: list[Outcome], left_out: list[Case], rounds: int) -> None:
    """Write the suite's section of docs/diagnosis.md.

    Args:
        suite: What was run.
        outcomes: Of all scripts that ran.
        left_out: Those that did not.
        rounds: How often each ran.
    """
    table = [
        f"{RIGHT}{suite.about}{REPEATED}".strip(), "",
        "| script | style | planted | found first | line right | right |",
        "|---|---|---|---|---|---|",
        *(outcome.row() for outcome in outcomes),
        *(f"| `{case.name}` | {case.style} | {case.rule} | not run: no CUDA device | | |"
          for case in left_out),
    ]  # fmt: skip
    wrong = [outcome for outcome in outcomes if not outcome.right]
    if wrong:
        table += ["", "Verdicts on those that are not right:", ""]
        table += [f"- `{outcome.case.name}`: {outcome.sentence}" for outcome in wrong]
    reasons = {case.name: case.why for case in suite.cases if case.why}
    if reasons:
        table += ["", "Where two rules are equally true:", ""]
        table += [f"- `{name}`: {why}" for name, why in reasons.items()]
    faulty = [outcome for outcome in outcomes if outcome.case.rule]
    healthy = [outcome for outcome in outcomes if not outcome.case.rule]
    with_line = [outcome for outcome in faulty if outcome.line_right is not None]
    rows = [
        Row("all scripts right", shares([each.right for each in outcomes], rounds), ">= 0.95"),
        Row("rule right, planted", shares([each.rule_right for each in faulty], rounds), ">= 0.95"),
        Row(
            "line right, where one is at fault",
            shares([bool(each.line_right) for each in with_line], rounds),
            ">= 0.95",
        ),
        Row("controls left alone", shares([each.right for each in healthy], rounds), ">= 1"),
        Row("share of the CPU time that the host withheld, by run", STOLEN, ""),
    ]
    command = f"python benchmarks/diagnosis/run.py{suite.flag} --rounds {rounds}"
    write_section(suite.title, command, table, rows, page=PAGE)


def shares(right: list[bool], rounds: int) -> list[float]:
    """Return the share that is right in each round; the rounds lie one after the other."""
    size = len(right) // rounds
    return [sum(right[start : start + size]) / size for start in range(0, len(right), size)]


if __name__ == "__main__":
    main()
