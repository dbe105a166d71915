"""How often the doctor is right: scripts with one planted bottleneck each, and healthy ones.

    python benchmarks/diagnosis/run.py
    python benchmarks/diagnosis/run.py --suite unseen
    python benchmarks/diagnosis/run.py --suite real
    python benchmarks/diagnosis/run.py --suite projects
    python benchmarks/diagnosis/run.py --suite real --truth
    python benchmarks/diagnosis/run.py --suite real --verdicts
    python benchmarks/diagnosis/run.py --suite real --keep FOLDER
    python benchmarks/diagnosis/run.py --suite real --again FOLDER

Each script runs through `headrace run`, which knows nothing of what is planted, and then
`headrace doctor --json` is asked. Right is: the planted bottleneck's rule is ranked first, with
the line or function at fault where there is one; and no finding is the headline of a healthy
script. Where a case says how its bottleneck is removed, the script's own rate is measured with and
without it, and compared with the prediction. Writes docs/diagnosis.md, unless only some scripts
are run. `--truth` measures these rates alone and asks the doctor nothing; `--verdicts` asks the
doctor alone, prints what it says and writes nothing. `--keep` leaves the runs in a folder with the
rates that were measured, and `--again` asks the doctor about these once more, as after a change of
its rules: it runs no script but those whose promise is another one now, and writes nothing.

The scripts in `real` are in the styles that people publish, `projects` are some of several files,
and some of both need libraries that Headrace is not developed with; where one is missing its
scripts are not run, and listed as such. An environment for all of them, outside of the checkout:

    python -m venv /elsewhere/venv
    /elsewhere/venv/bin/pip install torch==2.14.1 torchvision==0.29.1 timm lightning accelerate
    /elsewhere/venv/bin/pip install torchdata datasets transformers scipy dist/headrace-*.whl
    /elsewhere/venv/bin/python benchmarks/diagnosis/run.py --suite real
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from cases import CASES, Case  # noqa: E402 - they stand beside this script
from first_scores import add_first_score, read_first_scores  # noqa: E402 - as above
from kept_runs import KeptRun, keep_run, read_kept_runs  # noqa: E402 - as above
from outcome import Outcome  # noqa: E402 - as above
from project_cases import PROJECTS  # noqa: E402 - as above
from real_cases import REAL  # noqa: E402 - as above
from real_data import make_data  # noqa: E402 - as above
from step_scale import VARIABLE, step_scale  # noqa: E402 - as above
from truth import (  # noqa: E402 - as above
    LONGEST_S,
    measured_rates,
    missing,
    printed_rate,
    run_hanging_script,
    run_script,
)
from unseen_cases import UNSEEN  # noqa: E402 - as above

from core_sharing import core_sharing  # noqa: E402 - as above
from cpu_steal import MOST_STOLEN, TRIES, run_undisturbed  # noqa: E402 - as above
from report import ROOT, Row, write_section  # noqa: E402 - as above

PAGE = ROOT / "docs" / "diagnosis.md"
DATA = ROOT / "bench-data" / "diagnosis"
HEADRACE = (sys.executable, "-m", "headrace.cli.main")
STOLEN: list[float] = []
"""What the host withheld from each run that counts, as a share of the CPU time it wanted."""
RIGHT = """
`headrace run` runs each script unmodified, and `headrace doctor --json` diagnoses it. **Right**
means: the expected rule is ranked first, and, where a line or function is at fault (marked in the
script by a comment `# at fault`, or named in the table of cases), the finding names it. A control
is right if no finding is its headline: the worst one that is more than information. Without a GPU
the accelerator is emulated by sleeping in the model's forward, whose small layers compute in one
thread, as a device has no threads that compete with the workers for the host's cores. Scripts
whose fault only a device shows are then not run, and listed as such.
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
MOST_DRIFT, DRIFT_TRIES = 0.15, 3
PUBLISHED = f"""
These scripts are written in the styles in which people publish theirs, by someone who did not
know what the doctor says of them. The first score of each is kept in
`benchmarks/diagnosis/first_scores.json`, and nothing was tuned to it. **Measured** is the
script's own rate without the bottleneck over that with it, medians of three runs each without
Headrace, interleaved: an argument of the script, or the remedy, removes it. **Predicted** is what
the first finding's remedy promised of that. Cores of a shared host are faster at some times than at
others: where a script's own rate as it was recorded differs by more than {MOST_DRIFT:.0%} from the
one without Headrace that it is measured against, both are made again, up to {DRIFT_TRIES} times in
all; the try in which the rates differ least counts. The emulated device is as fast, beside the
host's cores, as on those that the scripts were written for: a fault that is harmless to slow
devices would else show on slow cores alone. With {VARIABLE}=1 its steps are as long as the scripts
say.
"""
OF_SEVERAL_FILES = """
These are projects of several files, written from reports of public bugs and in public styles by
someone who did not know the rules' code. The first score of each, from before anything was changed
because of it, is kept in `benchmarks/diagnosis/first_scores.json`. A line at fault is in any of a
project's files. The emulated device takes as long as the scripts say, on any host. One project
hangs: it is ended by SIGTERM. Where a project prints its rate and has an argument that removes the
bottleneck, what is predicted of that is compared with what is measured, as above.
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
        about: How the scripts came about.
        keeps_first_scores: Whether what the doctor said of each at first is kept.
        predictions: Whether predictions are compared with measurements.
        reads_data: Whether the scripts' data is made before, and steps of the emulated device are
            scaled to the speed of the host's cores.
    """

    title: str
    cases: tuple[Case, ...]
    about: str
    keeps_first_scores: bool = False
    predictions: bool = False
    reads_data: bool = False


SUITES = {
    "scripts": Suite("Diagnosis", CASES, TUNED),
    "unseen": Suite("Scripts that the rules were not tuned on", UNSEEN, UNTUNED),
    "real": Suite(
        "Scripts in published styles",
        REAL,
        PUBLISHED,
        keeps_first_scores=True,
        predictions=True,
        reads_data=True,
    ),
    "projects": Suite(
        "Projects of several files",
        PROJECTS,
        OF_SEVERAL_FILES,
        keeps_first_scores=True,
        predictions=True,
    ),
}


def main() -> None:
    """Run the scripts and print how often the doctor was right."""
    options = parsed_options()
    suite = SUITES[options.suite]
    chosen = [case for case in suite.cases if not options.only or case.name in options.only]
    left_out = [(case, why) for case in chosen if (why := reason_to_leave_out(case))]
    for case, why in left_out:
        chosen.remove(case)
        print(f"{case.name} is not run: {why}", flush=True)
    data = make_data(options.data) if suite.reads_data else None
    if suite.reads_data:
        os.environ.setdefault(VARIABLE, f"{step_scale():.3f}")
        print(f"Emulated steps are {os.environ[VARIABLE]} times as long as the scripts say.")
    if options.truth:
        print_truths(chosen, data)
        return
    outcomes = []
    for number in range(options.rounds):
        for case in chosen:
            began = time.perf_counter()
            outcome = judged(case, number, data, options)
            if suite.keeps_first_scores and not (options.verdicts or options.again):
                add_first_score(case.name, outcome.score())
            outcomes.append(outcome)
            print(outcome.row(), flush=True)
            if outcome.case.removals and not options.verdicts:
                print(f"    {outcome.prediction_row()}", flush=True)
            print(f"    {time.perf_counter() - began:.0f} s. {outcome.sentence}", flush=True)
    right = sum(outcome.right for outcome in outcomes)
    print(f"{right} of {len(outcomes)} right")
    if options.again:
        print_summary(outcomes, options.rounds)
    elif not (options.only or options.verdicts):
        publish(options.suite, outcomes, left_out, options.rounds)


def judged(case: Case, number: int, data: Path | None, options: argparse.Namespace) -> Outcome:
    """Return what the doctor says of a script in a round, in the way that was chosen."""
    if options.again:
        return diagnosed_again(case, options.again, number, data)
    if options.verdicts:
        return diagnosed(case, options.keep, str(number), data)
    return measured(case, options.keep, number, data)


def parsed_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=SUITES, default="scripts")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    parser.add_argument("--again", type=Path, help="diagnose the runs that were kept there again")
    parser.add_argument("--data", type=Path, default=DATA, help="what the scripts in real read")
    parser.add_argument(
        "--truth", action="store_true", help="measure what removing the bottleneck gives, alone"
    )
    parser.add_argument(
        "--verdicts", action="store_true", help="ask the doctor alone; measure and write nothing"
    )
    options = parser.parse_args()
    suite = SUITES[options.suite]
    unknown = set(options.only) - {case.name for case in suite.cases}
    if unknown:
        parser.error(f"no such script in the suite {options.suite}: {', '.join(sorted(unknown))}")
    if options.truth and not any(case.removals for case in suite.cases):
        parser.error(f"the suite {options.suite} does not say how its bottlenecks are removed")
    return options


def reason_to_leave_out(case: Case) -> str:
    """Return why a script cannot be run here; "" where it can."""
    if case.on_device and not torch.cuda.is_available():
        return "no CUDA device"
    names = missing(case)
    return f"no {', '.join(names)} (pip install {' '.join(names)})" if names else ""


def print_truths(cases: list[Case], data: Path | None) -> None:
    """Measure and print what removing each bottleneck gives; 2 stands for a number of workers."""
    print("| script | applied | measured |\n|---|---|---|")
    for case in cases:
        for name, removal in case.removals.items():
            applied = tuple(each.replace("{n}", "2") for each in removal)
            slow, fast = measured_rates(case, data, applied)
            factor = f"{fast / slow:.2f}"
            print(f"| `{case.name}` | {name}: `{' '.join(applied)}` | {factor} |", flush=True)


def measured(case: Case, keep: Path | None, number: int, data: Path | None) -> Outcome:
    """Return a script's diagnosis, with what its promise gave, at one speed of the host.

    Where the script itself was faster or slower as it was recorded than as it was measured, by
    more than a little, both are made again; the try in which that differs least counts.
    """
    tries: list[Outcome] = []
    for tried in range(DRIFT_TRIES):
        outcome = diagnosed(case, keep, f"{number}-{tried}", data)
        tries.append(with_measurement(outcome, data))
        if (tries[-1].drift or 0.0) <= MOST_DRIFT:
            break
        print(f"    {case.name}: its own rate changed by {tries[-1].drift:.0%}", flush=True)
    counted = min(tries, key=lambda each: each.drift or 0.0)
    if keep is not None:
        keep_run(keep, f"{case.name}-{number}", kept(counted))
    return counted


def kept(outcome: Outcome) -> KeptRun:
    """Return what is noted of an outcome's run."""
    slow, promise = outcome.own_rate, outcome.promise
    return KeptRun(
        folder=outcome.folder,
        recorded_rate=outcome.recorded_rate,
        removal=() if promise is None else promise.removal,
        slow=slow,
        fast=None if slow is None or outcome.measured is None else slow * outcome.measured,
    )


def diagnosed_again(case: Case, folder: Path, number: int, data: Path | None) -> Outcome:
    """Return what the doctor says now of a run that was kept, with the rates measured then.

    Raises:
        SystemExit: None of that script was kept.
    """
    run = read_kept_runs(folder).get(f"{case.name}-{number}")
    if run is None:
        sys.exit(f"No run of {case.name} was kept in {folder}.")
    diagnosis = diagnosis_of(case, folder / run.folder)
    outcome = outcome_of(case, diagnosis, run.recorded_rate, folder / run.folder)
    promise = outcome.promise
    if promise is None or promise.removal != run.removal or run.slow is None or run.fast is None:
        return with_measurement(outcome, data)
    return replace(outcome, measured=run.fast / run.slow, own_rate=run.slow)


def outcome_of(case: Case, diagnosis: dict[str, Any], rate: float | None, folder: Path) -> Outcome:
    """Return a diagnosis of a run as an outcome, without a measurement."""
    return Outcome(
        case=case,
        findings=diagnosis["findings"],
        sentence=diagnosis["verdict"]["sentence"],
        recorded_rate=rate,
        folder=folder.name,
    )


def diagnosed(case: Case, keep: Path | None, number: str, data: Path | None) -> Outcome:
    """Run a script, while the host leaves it its cores, and return its diagnosis.

    Args:
        case: The script.
        keep: Where its run stays; None: nowhere.
        number: Of the round, and of the try.
        data: The folder of the scripts' data.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        return run_undisturbed(
            lambda tried: recorded(case, folder / f"{case.name}-{number}-{tried}", data), STOLEN
        )


def recorded(case: Case, folder: Path, data: Path | None) -> Outcome:
    """Run a script through `headrace run`, and return its diagnosis and the rate it printed."""
    run = ["run", "--run-dir", str(folder.resolve()), *case.flags, str(case.script)]
    command = [*HEADRACE, *run, *case.script_arguments(data)]
    rate = None
    if case.ended_after_s is not None:
        run_hanging_script(command, case.working_folder, case.ended_after_s)
    else:
        done = run_script(command, data, case.working_folder)
        rate = printed_rate(done.stdout, done.stderr)
    return outcome_of(case, diagnosis_of(case, folder), rate, folder)


def diagnosis_of(case: Case, folder: Path) -> dict[str, Any]:
    """Return what `headrace doctor --json` says of a run."""
    asked = subprocess.run(
        [*HEADRACE, "doctor", "--json", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    if not asked.stdout:
        sys.exit(f"headrace doctor says nothing of {case.name}:\n{asked.stderr[-4000:]}")
    diagnosis: dict[str, Any] = json.loads(asked.stdout)
    return diagnosis


def with_measurement(outcome: Outcome, data: Path | None) -> Outcome:
    """Return the outcome with what its promise gave, if it makes one."""
    promise = outcome.promise
    if promise is None:
        return outcome
    slow, fast = measured_rates(outcome.case, data, promise.removal)
    return replace(outcome, measured=fast / slow, own_rate=slow)


def publish(
    name: str, outcomes: list[Outcome], left_out: list[tuple[Case, str]], rounds: int
) -> None:
    """Write the suite's section of docs/diagnosis.md.

    Args:
        name: Of the suite.
        outcomes: Of all scripts that ran.
        left_out: Those that did not, and why.
        rounds: How often each ran.
    """
    suite = SUITES[name]
    table = [
        f"{RIGHT}{suite.about}{REPEATED}".strip(),
        "",
        "| script | style | planted | found first | line right | right |",
        "|---|---|---|---|---|---|",
        *(outcome.row() for outcome in outcomes),
        *(
            f"| `{case.name}` | {case.style} | {case.rule or 'healthy'} | not run: {why} | | |"
            for case, why in left_out
        ),
        *wrong_verdicts(outcomes),
        *equal_rules(suite),
        *(prediction_table(outcomes) if suite.predictions else []),
        *(first_score_lines(suite) if suite.keeps_first_scores else []),
    ]
    rows = [
        *right_rows(outcomes, rounds),
        *(prediction_rows(outcomes) if suite.predictions else []),
    ]
    if suite.reads_data:
        scale = [float(os.environ[VARIABLE])]
        rows.append(Row("length of emulated steps, over what the scripts say", scale, ""))
    rows.append(Row("time of a loop in all cores at once, over that in one", core_sharing(), ""))
    rows.append(Row("share of the CPU time that the host withheld, by run", STOLEN, ""))
    chosen = "" if name == "scripts" else f" --suite {name}"
    command = f"python benchmarks/diagnosis/run.py{chosen} --rounds {rounds}"
    write_section(suite.title, command, table, rows, page=PAGE)


def print_summary(outcomes: list[Outcome], rounds: int) -> None:
    """Print how often the doctor was right, and how far its predictions were off."""
    rows = [*right_rows(outcomes, rounds), *prediction_rows(outcomes)]
    print("\n".join(row.line() for row in rows if row.values))


def wrong_verdicts(outcomes: list[Outcome]) -> list[str]:
    """Return what the doctor said where it is not right."""
    lines = [f"- `{each.case.name}`: {each.sentence}" for each in outcomes if not each.right]
    return ["", "Verdicts on those that are not right:", "", *lines] if lines else []


def equal_rules(suite: Suite) -> list[str]:
    """Return why another rule is as true, where one is."""
    lines = [f"- `{case.name}`: {case.why}" for case in suite.cases if case.why]
    return ["", "Where two rules are equally true:", "", *lines] if lines else []


def prediction_table(outcomes: list[Outcome]) -> list[str]:
    """Return what was predicted and measured."""
    return [
        "",
        "| script | applied | predicted | measured | error |",
        "|---|---|---|---|---|",
        *(outcome.prediction_row() for outcome in outcomes if outcome.case.removals),
    ]


def first_score_lines(suite: Suite) -> list[str]:
    """Return how many first scores of the suite's scripts were right."""
    first = read_first_scores(case.name for case in suite.cases)
    right = [score["rule_right"] and score["line_right"] is not False for score in first.values()]
    return ["", f"First scores: {sum(right)} of {len(right)} scripts right."]


def right_rows(outcomes: list[Outcome], rounds: int) -> list[Row]:
    """Return how often rule, line and controls were right."""
    faulty = [outcome for outcome in outcomes if outcome.case.rule]
    healthy = [outcome for outcome in outcomes if not outcome.case.rule]
    with_line = [outcome for outcome in faulty if outcome.line_right is not None]
    return [
        Row("all scripts right", shares([each.right for each in outcomes], rounds), ">= 0.95"),
        Row("rule right, planted", shares([each.rule_right for each in faulty], rounds), ">= 0.95"),
        Row(
            "line right, where one is at fault",
            shares([bool(each.line_right) for each in with_line], rounds),
            ">= 0.95",
        ),
        Row("controls left alone", shares([each.right for each in healthy], rounds), ">= 1"),
    ]


def prediction_rows(outcomes: list[Outcome]) -> list[Row]:
    """Return how far predictions were off."""
    errors = [abs(outcome.error) for outcome in outcomes if outcome.error is not None]
    worst = [max(errors)] if errors else []
    drifts = [outcome.drift for outcome in outcomes if outcome.drift is not None]
    return [
        Row("error of the prediction", errors, "<= 0.1"),
        Row("largest error of a prediction", worst, "<= 0.25"),
        Row("change of a script's own rate, recorded to measured", drifts, ""),
    ]


def shares(right: list[bool], rounds: int) -> list[float]:
    """Return the share that is right in each round; the rounds lie one after the other."""
    size = len(right) // rounds
    return [sum(right[start : start + size]) / size for start in range(0, len(right), size)]


if __name__ == "__main__":
    main()
