"""How far predictions are off: scripts and remedies, each foretold from one run, then measured.

    python benchmarks/remedies/pairs.py

For each script as it stands (a case): one run is recorded, and from its records alone every remedy
of the case is predicted. Then the script runs with each remedy, and once more as it stands: the
measured speed-up compares with both runs as it stands, so that a machine that grows slower with
time counts less. Writes docs/predictions.md, unless only some cases are run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from calm import MOST_STOLEN, calmly  # noqa: E402 - stands above this folder
from headrace.observe.doctor.diagnose import diagnose  # noqa: E402 - likewise
from headrace.observe.doctor.evidence import Evidence, gather  # noqa: E402
from headrace.observe.whatif.backtest import Checked, errors  # noqa: E402
from headrace.observe.whatif.comparison import compare  # noqa: E402
from headrace.observe.whatif.prediction import Change, Prediction, with_workers  # noqa: E402
from headrace.records.reading import Records, open_records  # noqa: E402
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "predictions.md"
LONGEST_S = 180
STOLEN: list[float] = []
"""What the host withheld from each run that counts, as a share of the CPU time it wanted."""
NOTES = f"""
**Predicted** is what the records of one run of the script as it stands say of the remedy, with the
90 % interval that users are told; **measured** is the mean step of the runs as it stands over that
of the run with the remedy. **Error** is predicted / measured - 1. The accelerator is emulated by
sleeping in the step. Some remedies are none (more batches ahead of a loader that is never ahead):
a true prediction is then 1.0, and it is in the table because users ask. Runs from which the host
withheld more than {MOST_STOLEN:.0%} of the CPU time are made again, four times at most.
"""


@dataclass(frozen=True, kw_only=True)
class Remedied:
    """A remedy, how it is predicted and how it is applied.

    Attributes:
        name: What is changed.
        predict: From the evidence of the run as it stands to the prediction.
        flags: Of `headrace run`.
        arguments: Of the script.
    """

    name: str
    predict: Callable[[Evidence, Records], Prediction | None]
    flags: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script as it stands, and its remedies."""

    script: str
    remedies: tuple[Remedied, ...]
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it."""
        return " ".join((self.script, *self.arguments))


def workers(count: int) -> Remedied:
    """So many workers."""
    return Remedied(
        name=f"{count} workers",
        predict=lambda evidence, _: with_workers(simulator(evidence), count),
        flags=("--apply", f"num_workers={count}"),
    )


def prefetch(count: int) -> Remedied:
    """So many batches ahead, a worker."""
    return Remedied(
        name=f"{count} batches ahead",
        predict=lambda evidence, _: simulator(evidence).predict(Change(prefetch_factor=count)),
        flags=("--apply", f"prefetch_factor={count}"),
    )


def less(name: str, remedy: str, effort: float) -> Remedied:
    """Less of the slow part: predicted by the doctor, under its name for the remedy."""
    return Remedied(
        name=name,
        predict=lambda _, records: proposed(records, remedy),
        arguments=("--effort", str(effort)),
    )


def persistent() -> Remedied:
    """Workers that live on."""
    return Remedied(
        name="persistent workers",
        predict=lambda _, records: proposed(records, "persistent-workers"),
        flags=("--apply", "persistent_workers=on"),
    )


def simulator(evidence: Evidence):
    """Return the measured pipeline's simulator."""
    if evidence.simulator is None:
        raise SystemExit("the run has no loader to simulate")
    return evidence.simulator


def proposed(records: Records, remedy: str) -> Prediction | None:
    """Return what the doctor predicts for a remedy, where it proposes it."""
    for finding in diagnose(records).findings:
        for each in finding.remedies:
            if each.name == remedy and each.predicted_speedup is not None:
                return Prediction(
                    speedup=each.predicted_speedup,
                    low=each.low or each.predicted_speedup,
                    high=each.high or each.predicted_speedup,
                    wait_share=0.0,
                )
    return None


HALF = less("the slow part twice as fast", "faster-code", 0.5)
NONE = less("without the slow part", "move-code", 0.0)
CASES = (
    Case(script="photos", arguments=("--workers", "0"), remedies=(workers(1), workers(2))),
    Case(script="photos", arguments=("--workers", "1"),
         remedies=(workers(2), prefetch(6), HALF, NONE)),
    Case(script="photos", arguments=("--workers", "2", "--step-ms", "10"), remedies=(HALF, NONE)),
    Case(script="distant", arguments=("--workers", "0"),
         remedies=(workers(1), workers(2), workers(4))),
    Case(script="distant", arguments=("--workers", "1"),
         remedies=(workers(2), workers(3), workers(4), workers(6), prefetch(8))),
    Case(script="distant", arguments=("--workers", "2"), remedies=(workers(3), workers(4))),
    Case(script="stream", arguments=("--workers", "0"), remedies=(HALF, NONE)),
    Case(script="stream", arguments=("--workers", "1"), remedies=(HALF, NONE, prefetch(4))),
    Case(script="uneven", arguments=("--workers", "2"),
         remedies=(prefetch(4), prefetch(8), workers(4), workers(8))),
    Case(script="epochs", arguments=("--workers", "2"), remedies=(persistent(),)),
    Case(script="epochs", arguments=("--workers", "4"), remedies=(persistent(),)),
    Case(script="padded", arguments=("--workers", "0"), remedies=(workers(1), workers(2))),
    Case(script="padded", arguments=("--workers", "1"),
         remedies=(workers(2), less("padded by torch", "move-code", 0.0))),
)  # fmt: skip
"""Every case; over thirty pairs in all."""


def main() -> None:
    """Run the cases and tell how far off the predictions were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", default=[])
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.only or case.script in options.only]
    checked, lines, missing = [], [], []
    for case in chosen:
        for remedy, found in pairs_of(case):
            if found is None:
                missing.append(f"{case.name}: {remedy}")
                print(f"{case.name}: {remedy}: not proposed", flush=True)
                continue
            checked.append(found)
            lines.append(row(case, remedy, found))
            print(lines[-1], flush=True)
    if not checked:
        sys.exit("nothing was predicted")
    print(dict(errors(checked)), missing)
    if not options.only:
        publish(checked, lines, missing)


def pairs_of(case: Case) -> list[tuple[str, Checked | None]]:
    """Run a case as it stands and with each remedy; return what was predicted and measured."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        first = calm_run(case, folder / "first")
        evidence = gather(first)
        predicted = [each.predict(evidence, first) for each in case.remedies]
        changed = [
            calm_run(case, folder / str(number), each) if forecast is not None else None
            for number, (each, forecast) in enumerate(zip(case.remedies, predicted, strict=True))
        ]
        again = calm_run(case, folder / "again")
        return [
            (each.name, None if forecast is None or after is None
             else check(each, forecast, (first, again), after))
            for each, forecast, after in zip(case.remedies, predicted, changed, strict=True)
        ]  # fmt: skip


def calm_run(case: Case, folder: Path, remedy: Remedied | None = None) -> Records:
    """Run a script while the machine is left to it, in a folder beside `folder`."""
    tries = iter(range(100))
    return calmly(
        lambda: run(case, folder.with_name(f"{folder.name}-{next(tries)}"), remedy), STOLEN
    )


def run(case: Case, folder: Path, remedy: Remedied | None = None) -> Records:
    """Run a script through `headrace run`."""
    flags, arguments = (remedy.flags, remedy.arguments) if remedy else ((), ())
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", str(folder), *flags,
         str(HERE / "scripts" / f"{case.script}.py"), *case.arguments, *arguments],
        capture_output=True, text=True, check=False, timeout=LONGEST_S,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{case.name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return open_records(folder)


def check(
    remedy: Remedied, forecast: Prediction, before: tuple[Records, Records], after: Records
) -> Checked:
    """Hold a prediction against what was measured."""
    each = [compare(records, after) for records in before]
    return Checked(
        remedy=remedy.name,
        change=" ".join((*remedy.flags, *remedy.arguments)),
        applied=remedy.flags + remedy.arguments,
        predicted=forecast.speedup,
        low=forecast.low,
        high=forecast.high,
        measured=sum(one.speedup for one in each) / len(each),
        measured_low=min(one.low for one in each),
        measured_high=max(one.high for one in each),
    )


def row(case: Case, remedy: str, checked: Checked) -> str:
    """Return the row of the table."""
    return (
        f"| `{case.name}` | {remedy} | {checked.predicted:.2f} "
        f"({checked.low:.2f} to {checked.high:.2f}) | {checked.measured:.2f} | "
        f"{checked.error:+.1%} | {'yes' if checked.held else 'no'} |"
    )


def publish(checked: list[Checked], lines: list[str], missing: list[str]) -> None:
    """Write docs/predictions.md."""
    table = [
        NOTES.strip(), "",
        "| script | remedy | predicted | measured | error | intervals meet |",
        "|---|---|---|---|---|---|",
        *lines,
    ]  # fmt: skip
    if missing:
        table += ["", "The doctor proposed nothing, so nothing was checked, for:", ""]
        table += [f"- {each}" for each in missing]
    found = errors(checked)
    rows = [
        Row("pairs", [float(len(checked))], ">= 30"),
        Row("median error", [found["median"]], "<= 0.10"),
        Row("worst error", [found["worst"]], "<= 0.25"),
        Row("intervals that meet", [found["held"]], ""),
        Row("share of the CPU time that the host withheld, the worst run", [max(STOLEN)], ""),
    ]
    write_section(
        "Predictions checked", "python benchmarks/remedies/pairs.py", table, rows, page=PAGE
    )


if __name__ == "__main__":
    main()
