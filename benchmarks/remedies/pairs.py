"""How far predictions are off: scripts and remedies, each predicted from one run, then measured.

    python benchmarks/remedies/pairs.py [--rounds 3] [--go-on]

For each script as it stands (a case), in each round: one run is recorded, and from its records
alone every remedy of the case is predicted. Then the script runs with each remedy, and once more as
it stands: the measured speed-up compares with both runs as it stands, so that a machine that grows
slower with time counts less. A pair's figures are the medians over its rounds, as one run of some
seconds on a shared machine differs from the next. Writes docs/predictions.md, unless only some
cases are run.

Where the machine's host has other work some runs are disturbed. The figures of each case are kept,
and `--go-on` takes those of cases that were not, measured before with the same code, as they are.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from bucket import Photographs, late_bucket  # noqa: E402 - it stands beside this script
from cases import CASES, Case, Remedied  # noqa: E402 - as above
from stored_results import Measured, code, load_result, store_result  # noqa: E402 - as above

from cpu_steal import MOST_STOLEN, run_undisturbed  # noqa: E402 - stands above this folder
from headrace.core.env import child_environment  # noqa: E402 - after the path
from headrace.observe.doctor.evidence import gather_evidence  # noqa: E402
from headrace.observe.whatif.comparison import (  # noqa: E402
    CheckedPrediction,
    compare,
    error_summary,
)
from headrace.observe.whatif.prediction import Prediction  # noqa: E402
from headrace.records.reader import Records, open_records  # noqa: E402
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "predictions.md"
LONGEST_S = 180
NOTES = f"""
- **Predicted**: what the records of one run of the unchanged script predict of the remedy, with
  the 90 % interval that users see.
- **Measured**: the mean step of the unchanged runs over that of the run with the remedy, and the
  range over the rounds.
- **Error**: predicted / measured - 1.
- **Withheld**: the share of the CPU time that the host withheld from the script's runs, the
  median over them. Each run first waits, two minutes at most, for a moment in which that is no
  more than {MOST_STOLEN:.0%}.

Predicted and measured are medians over the rounds, each with runs of its own. The accelerator is
emulated by sleeping in the step. Some remedies cannot help (more batches ahead of a loader that
is never ahead): the right prediction is then 1.0, and they are in the table because users ask.

Not among these pairs: thread limits, which `headrace tune` checks in
[reference_a.md](reference_a.md); pinning, copies on a side stream, transforms on the device and
bigger batches, which need a device; and auxiliary hosts, which [offload.md](offload.md) checks.
"""


def main() -> None:
    """Run the cases and print how far off the predictions were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--go-on", action="store_true", help="keep what was measured undisturbed")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.only or case.script in options.only]
    table = Table()
    for case in chosen:
        measured = load_result(case, options.rounds, MOST_STOLEN) if options.go_on else None
        if measured is None:
            before = code()
            measured = measure(case, options.rounds)
            store_result(case, measured, before)
        table.add(case, measured)
    if not table.checked:
        sys.exit("nothing was predicted")
    print(dict(error_summary(table.checked)), dict(error_summary(table.single)), table.missing)
    if not options.only:
        table.publish(options.rounds)


def measure(case: Case, rounds: int) -> Measured:
    """Run a case as it stands and with each remedy; return what was predicted and measured."""
    with tempfile.TemporaryDirectory() as temporary, photographs(case, Path(temporary)) as data:
        runs = Runs(case, Path(temporary), data)
        found = [one_round(case, runs, f"{number}-") for number in range(rounds)]
    names = [each.name for each in case.remedies]
    return Measured(
        tuple(zip(names, zip(*found, strict=True), strict=True)), statistics.median(runs.stolen)
    )


def one_round(case: Case, runs: Runs, prefix: str) -> list[CheckedPrediction | None]:
    """Predict and measure each remedy once; None where the doctor did not propose it."""
    first = runs.undisturbed(f"{prefix}first")
    evidence = gather_evidence(first)
    predicted = [each.predict(evidence, first) for each in case.remedies]
    changed = [
        runs.undisturbed(f"{prefix}{number}", each) if forecast is not None else None
        for number, (each, forecast) in enumerate(zip(case.remedies, predicted, strict=True))
    ]
    again = runs.undisturbed(f"{prefix}again")
    return [
        None if forecast is None or after is None
        else check(each, forecast, (first, again), after)
        for each, forecast, after in zip(case.remedies, predicted, changed, strict=True)
    ]  # fmt: skip


def photographs(case: Case, folder: Path) -> AbstractContextManager[Photographs | None]:
    """Give a case the photographs that it reads, where it reads any."""
    return late_bucket(folder) if case.data else nullcontext()


@dataclass(frozen=True)
class Runs:
    """The runs of a case, below a folder.

    Attributes:
        case: The case.
        folder: Where they lie.
        data: What the script reads; None: it makes its own data.
        stolen: What the host withheld from each run that counts, of the CPU time it wanted.
    """

    case: Case
    folder: Path
    data: Photographs | None
    stolen: list[float] = field(default_factory=list)

    def undisturbed(self, name: str, remedy: Remedied | None = None) -> Records:
        """Run the script while the machine is left to it."""
        return run_undisturbed(
            lambda number: self._run(self.folder / f"{name}-{number}", remedy), self.stolen, 1
        )

    def _run(self, folder: Path, remedy: Remedied | None) -> Records:
        """Run it through `headrace run`."""
        script = str(HERE / "scripts" / f"{self.case.script}.py")
        flags, arguments = (remedy.flags, remedy.arguments) if remedy else ((), ())
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", str(folder), *flags,
             script, *self.case.arguments, *arguments, *self._reads(remedy)],
            env=child_environment(self.data.environment if self.data else {}),
            capture_output=True, text=True, check=False, timeout=LONGEST_S,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{self.case.name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        return open_records(folder)

    def _reads(self, remedy: Remedied | None) -> list[str]:
        """Return the arguments that say what the script reads."""
        if self.data is None:
            return []
        kind = remedy.data if remedy and remedy.data else self.case.data
        return [f"--{kind}", self.data.places[kind]]


def check(
    remedy: Remedied, forecast: Prediction, before: tuple[Records, Records], after: Records
) -> CheckedPrediction:
    """Hold a prediction against what was measured."""
    each = [compare(records, after) for records in before]
    return CheckedPrediction(
        remedy=remedy.name,
        change=remedy.change,
        applied=tuple(remedy.change.split()),
        predicted=forecast.speedup,
        low=forecast.low,
        high=forecast.high,
        measured=sum(one.speedup for one in each) / len(each),
        measured_low=min(one.low for one in each),
        measured_high=max(one.high for one in each),
    )


def middle(rounds: list[CheckedPrediction]) -> CheckedPrediction:
    """Return the medians of what was predicted and measured, and of the ends of both intervals."""
    return replace(
        rounds[0],
        **{name: statistics.median(getattr(each, name) for each in rounds) for name in MEDIANS},
    )


MEDIANS = ("predicted", "low", "high", "measured", "measured_low", "measured_high")


@dataclass
class Table:
    """What is published.

    Attributes:
        checked: Every pair.
        single: Every pair in every round.
        lines: Of the table in docs/predictions.md.
        missing: What the doctor did not propose, and in how many of the rounds.
        stolen: What the host withheld from each case.
    """

    checked: list[CheckedPrediction] = field(default_factory=list)
    single: list[CheckedPrediction] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    stolen: list[float] = field(default_factory=list)

    def add(self, case: Case, measured: Measured) -> None:
        """Add a case's pairs, and print each."""
        self.stolen.append(measured.stolen)
        for remedy, rounds in measured.pairs:
            found = [each for each in rounds if each is not None]
            if len(found) < len(rounds):
                self.missing.append(
                    f"`{case.name}`, {remedy}: in {len(rounds) - len(found)} of {len(rounds)}"
                )
                print(self.missing[-1], "not proposed", flush=True)
            if found:
                self.single += found
                self.checked.append(middle(found))
                self.lines.append(self._line(case, found, measured.stolen))
                print(self.lines[-1], flush=True)

    @staticmethod
    def _line(case: Case, rounds: list[CheckedPrediction], stolen: float) -> str:
        checked, measured = middle(rounds), [each.measured for each in rounds]
        return (
            f"| `{case.name}` | {checked.remedy} | {checked.predicted:.2f} "
            f"({checked.low:.2f} to {checked.high:.2f}) | {checked.measured:.2f} "
            f"({min(measured):.2f} to {max(measured):.2f}) | "
            f"{checked.error:+.1%} | {'yes' if checked.held else 'no'} | {stolen:.0%} |"
        )

    def publish(self, rounds: int) -> None:
        """Write docs/predictions.md."""
        table = [
            NOTES.strip(), "",
            "| script | remedy | predicted | measured | error | intervals meet | withheld |",
            "|---|---|---|---|---|---|---|",
            *self.lines,
        ]  # fmt: skip
        if self.missing:
            table += ["", f"Of {rounds} rounds, the doctor did not propose it, so it was not "]
            table[-1] += "checked:"
            table += ["", *(f"- {each}" for each in self.missing)]
        found, single = error_summary(self.checked), error_summary(self.single)
        rows = [
            Row("pairs", [float(len(self.checked))], ">= 30"),
            Row("median error", [found["median"]], "<= 0.10"),
            Row("worst error", [found["worst"]], "<= 0.25"),
            Row("intervals that meet", [found["held"]], ""),
            Row("median error of one round of a pair", [single["median"]], ""),
            Row("worst error of one round of a pair", [single["worst"]], ""),
            Row("share of the CPU time that the host withheld", self.stolen, ""),
        ]
        command = f"python benchmarks/remedies/pairs.py --rounds {rounds}"
        write_section("Predictions checked", command, table, rows, page=PAGE)


if __name__ == "__main__":
    main()
