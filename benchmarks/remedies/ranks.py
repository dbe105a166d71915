"""How well one rank's run foretells two ranks on the host, and the other way round.

    python benchmarks/remedies/ranks.py

Each case runs with one rank and with two, by `headrace run`. The speed of a rank and its data wait
at the other number of ranks are foretold from each run and held against the other. Writes a section
of docs/diagnosis.md, unless only some cases are run.
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

from headrace.observe.doctor.evidence import Evidence, gather  # noqa: E402 - after the path
from headrace.observe.doctor.foretelling import Foretelling, foretell  # noqa: E402 - likewise
from headrace.records.reading import open_records  # noqa: E402 - likewise
from report import Row, write_section  # noqa: E402 - it stands beside this folder

PAGE = HERE.parents[1] / "docs" / "diagnosis.md"
LONGEST_S = 240
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
NOTES = """
Each case trains with one rank and with two; from each run the other is foretold. `speed` is that of
a rank there over that of a rank here; **met** says whether the measured speed lies in the interval.
The accelerator is emulated by sleeping.
"""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What one run foretold of the other.

    Attributes:
        case: The case.
        told: What was foretold.
        speed: Measured speed of a rank there over that here.
        wait_share: Measured data wait over step time there.
    """

    case: str
    told: Foretelling
    speed: float
    wait_share: float

    @property
    def predicted(self) -> float:
        """The foretold speed."""
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
        now, then = self.told.now, self.told.then
        value, low, high = self._rates()
        waits = then.wait_share
        return (
            f"| {self.case} | {now.ranks} -> {then.ranks} | {value:.2f} ({low:.2f} to {high:.2f}) "
            f"| {self.speed:.2f} | {self.error:+.0%} | {'yes' if self.met else 'no'} "
            f"| {now.wait_share.value:.0%} | {waits.value:.0%} ({waits.low:.0%} to "
            f"{waits.high:.0%}) | {self.wait_share:.0%} |"
        )

    def _rates(self) -> tuple[float, float, float]:
        now, then = self.told.now, self.told.then
        here = now.batches_per_s.value / now.ranks * then.ranks
        rate = then.batches_per_s
        return rate.value / here, rate.low / here, rate.high / here


def main() -> None:
    """Run the cases and tell how far the foretold speeds are off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="CASE", default=[])
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    options = parser.parse_args()
    unknown = set(options.only) - CASES.keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    checked: list[Checked] = []
    for case in options.only or CASES:
        for each in run_case(case, options.keep):
            checked.append(each)
            print(each.row(), flush=True)
    if not options.only:
        publish(checked)


def run_case(case: str, keep: Path | None) -> list[Checked]:
    """Return what the run with one rank foretold, and that with two.

    Args:
        case: Its name.
        keep: Where its runs stay; None: nowhere.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)) / case.replace(", ", "-").replace(" ", "-")
        runs = {ranks: recorded(case, ranks, folder / str(ranks)) for ranks in (1, 2)}
    return [checked(case, runs[1], runs[2]), checked(case, runs[2], runs[1])]


def recorded(case: str, ranks: int, folder: Path) -> Evidence:
    """Run a case with so many ranks and return what is known of it."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", str(folder),
         "--nproc-per-node", str(ranks), str(HERE / "ranks_train.py"), *CASES[case].split()],
        capture_output=True, text=True, check=False, timeout=LONGEST_S,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{case} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return gather(open_records(folder))


def checked(case: str, here: Evidence, there: Evidence) -> Checked:
    """Hold what one run foretells against the other."""
    told = foretell(here, there.host.ranks, remedies=False)
    if told is None or here.simulator is None or there.simulator is None:
        sys.exit(f"{case}: its records do not say enough.")
    speed = here.simulator.measured.period_ns.mean() / there.simulator.measured.period_ns.mean()
    return Checked(
        case=case, told=told, speed=float(speed), wait_share=there.flowing.share("data_wait")
    )


def publish(found: list[Checked]) -> None:
    """Write the section."""
    table = [
        NOTES.strip(), "",
        "| case | ranks | foretold speed | measured | error | met | wait here | foretold | there |",
        "|---|---|---|---|---|---|---|---|---|",
        *(each.row() for each in found),
    ]  # fmt: skip
    rows = []
    for ranks, what in ((2, "one rank's run tells of two"), (1, "two ranks' run tells of one")):
        these = [each for each in found if each.told.then.ranks == ranks]
        errors = [abs(each.error) for each in these]
        waits = [abs(each.told.then.wait_share.value - each.wait_share) for each in these]
        rows += [
            Row(f"error of the speed, {what}", errors, "<= 0.1"),
            Row(f"error of the data-wait share, {what}", waits, "<= 0.1"),
        ]
    command = "python benchmarks/remedies/ranks.py"
    write_section("Ranks foretold", command, table, rows, page=PAGE)


if __name__ == "__main__":
    main()
