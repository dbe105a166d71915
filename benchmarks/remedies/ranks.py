"""How well one rank's run predicts two ranks on the host.

    python benchmarks/remedies/ranks.py

Each case runs with one rank and with two, by `headrace run`. The speed of a rank and its wait for
data with two are predicted from the run of one and held against the other. Writes a section of
docs/diagnosis.md, unless only some cases are run. The host must have nothing else to do.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from cpu_steal import MOST_STOLEN, TRIES, run_undisturbed  # noqa: E402 - after the path
from headrace.observe.doctor.evidence import Evidence, gather_evidence  # noqa: E402 - as above
from headrace.observe.doctor.scaling_forecast import ScalingForecast, forecast_ranks  # noqa: E402 - as above
from headrace.records.reader import open_records  # noqa: E402 - as above
from report import Row, write_section  # noqa: E402 - as above

PAGE = HERE.parents[1] / "docs" / "diagnosis.md"
LONGEST_S = 240
STOLEN: list[float] = []
"""What the host withheld from each run that counts, as a share of the CPU time it wanted."""
OWN_PHASES = ("copy", "forward", "optimizer", "other")
CASES = {
    "photos, light": "photo --amount 1 --workers 1 --step-ms 60",
    "photos": "photo --amount 2 --workers 2 --step-ms 45",
    "photos, heavy": "photo --amount 4 --workers 2 --step-ms 60",
    "hashes, light": "digest --amount 400 --workers 1 --step-ms 40",
    "hashes": "digest --amount 1200 --workers 2 --step-ms 30",
    "hashes, no workers": "digest --amount 600 --workers 0 --step-ms 20",
    "sorting": "sort --amount 20000 --workers 2 --step-ms 30",
    "sorting, heavy": "sort --amount 40000 --workers 2 --step-ms 30",
    "distant store": "distant --amount 3 --workers 2 --step-ms 40",
    "own work": "digest --amount 800 --workers 2 --step-ms 15 --own-work 20",
}
NOTES = f"""
Each case trains with one rank and with two; the run of one predicts the other. `speed` is that of
each of two ranks over that of one; **met** says whether the measured speed lies in the interval.
A rank that syncs gradients also waits for the other's data, in backward: so the measured wait
with two ranks is the data wait plus what backward and sync took beyond those of one rank. The
accelerator is emulated by sleeping. Runs from which the host withheld more than {MOST_STOLEN:.0%}
of the CPU time are repeated, up to {TRIES} times in all; the calmest one counts.
"""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the run of one rank predicted of two.

    Attributes:
        case: The case.
        forecast: What was predicted.
        speed: Measured speed of each of two ranks over that of one.
        wait_share: Measured wait for data with two, its own or the other's, over step time.
    """

    case: str
    forecast: ScalingForecast
    speed: float
    wait_share: float

    @property
    def predicted(self) -> float:
        """The predicted speed."""
        return self._rates()[0]

    @property
    def error(self) -> float:
        """How far it was off, as a share."""
        return self.predicted / self.speed - 1.0

    @property
    def met(self) -> bool:
        """Whether the interval holds the measured speed."""
        _, low, high = self._rates()
        return low <= self.speed <= high

    def row(self) -> str:
        """Return the row of the table."""
        now = self.forecast.now
        value, low, high = self._rates()
        waits = self.forecast.then.wait_share
        return (
            f"| {self.case} | {value:.2f} ({low:.2f} to {high:.2f}) "
            f"| {self.speed:.2f} | {self.error:+.0%} | {'yes' if self.met else 'no'} "
            f"| {now.wait_share.value:.0%} | {waits.value:.0%} ({waits.low:.0%} to "
            f"{waits.high:.0%}) | {self.wait_share:.0%} |"
        )

    def _rates(self) -> tuple[float, float, float]:
        now, then = self.forecast.now, self.forecast.then
        single = now.batches_per_s.value / now.ranks * then.ranks
        rate = then.batches_per_s
        return rate.value / single, rate.low / single, rate.high / single


def main() -> None:
    """Run the cases and print how far the predicted speeds are off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="CASE", default=[])
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    options = parser.parse_args()
    unknown = set(options.only) - CASES.keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    checked: list[Checked] = []
    for case in options.only or CASES:
        checked.append(run_case(case, options.keep))
        print(checked[-1].row(), flush=True)
    if not options.only:
        publish(checked)


def run_case(case: str, keep: Path | None) -> Checked:
    """Return what the run with one rank predicted, held against that with two.

    Args:
        case: Its name.
        keep: Where its runs stay; None: nowhere.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)) / case.replace(", ", "-").replace(" ", "-")
        runs = {ranks: run_once(case, ranks, folder) for ranks in (1, 2)}
    return held_against(case, runs[1], runs[2])


def run_once(case: str, ranks: int, folder: Path) -> Evidence:
    """Run a case with so many ranks, while the machine is left to it."""
    return run_undisturbed(
        lambda number: recorded(case, ranks, folder / f"{ranks}-{number}"), STOLEN
    )


def recorded(case: str, ranks: int, folder: Path) -> Evidence:
    """Run a case with so many ranks and return what is known of it."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", str(folder),
         "--nproc-per-node", str(ranks), str(HERE / "ranks_train.py"), *CASES[case].split()],
        capture_output=True, text=True, check=False, timeout=LONGEST_S,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{case} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return gather_evidence(open_records(folder))


def held_against(case: str, one: Evidence, two: Evidence) -> Checked:
    """Hold what the run of one rank predicts against that of two."""
    forecast = forecast_ranks(one, two.host.ranks, remedies=False)
    if forecast is None or one.simulator is None or two.simulator is None:
        sys.exit(f"{case}: its records do not say enough.")
    speed = one.simulator.measured.period_ns.mean() / two.simulator.measured.period_ns.mean()
    return Checked(case=case, forecast=forecast, speed=float(speed), wait_share=waits(one, two))


def waits(one: Evidence, two: Evidence) -> float:
    """Return the wait of two ranks for data, their own or each other's, over step time."""
    step_ns = two.steady_steps.wall_ns.mean()
    usual_ns = sum(one.steady_steps.phase_ns(phase).mean() for phase in ("backward", "sync"))
    own_ns = sum(two.steady_steps.phase_ns(phase).mean() for phase in OWN_PHASES)
    return float(1.0 - (own_ns + usual_ns) / step_ns)


def publish(found: list[Checked]) -> None:
    """Write the section."""
    table = [
        NOTES.strip(), "",
        "| case | predicted speed | measured | error | met | wait of one | predicted | of two |",
        "|---|---|---|---|---|---|---|---|",
        *(each.row() for each in found),
    ]  # fmt: skip
    errors = [abs(each.error) for each in found]
    off = [abs(each.forecast.then.wait_share.value - each.wait_share) for each in found]
    rows = [
        Row("error of the speed", errors, "<= 0.1"),
        Row("error of the share that waits", off, "<= 0.1"),
        Row("share of the CPU time that the host withheld, by run", STOLEN, ""),
    ]
    command = "python benchmarks/remedies/ranks.py"
    write_section("Rank predictions", command, table, rows, page=PAGE)


if __name__ == "__main__":
    main()
