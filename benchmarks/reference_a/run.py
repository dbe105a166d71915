"""Reference case A: a loader that is healthy on one rank and starves the cores on several.

    python benchmarks/reference_a/run.py

One rank is recorded, and its records predict two ranks. Two ranks are recorded: the doctor has to
name the line. `headrace tune` then has to find what at least doubles their speed, without editing
the script. Writes docs/reference_a.md, with the heatmaps of the cores before and after.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from screenshot import heatmap_picture  # noqa: E402

from cpu_steal import run_undisturbed  # noqa: E402 - stands above this folder
from headrace.observe.whatif.comparison import compare  # noqa: E402 - stands beside this script
from headrace.observe.whatif.train_steps import read_steps  # noqa: E402
from headrace.records.reader import open_records  # noqa: E402
from report import Row, write_section  # noqa: E402

DOCS = HERE.parents[1] / "docs"
SCRIPT = HERE / "segmentation.py"
RANKS = 2
LONGEST_S = 300
RULE = "cpu-starved-by-ranks"
CAUSES = {"distort", "use_all_cores", "StreetScenes.__getitem__"}
"""The functions at fault, and what calls them."""


def main() -> None:
    """Play the case through and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        one = run(folder / "one-rank")
        forecast = forecast_ranks(one)
        many = run(folder / "two-ranks", "--nproc-per-node", str(RANKS))
        tune_output = headrace(
            "tune", "--runs-dir", str(folder), "--nproc-per-node", str(RANKS), str(SCRIPT)
        )
        applied = applied_in(folder)
        tuned = run(folder / "two-ranks-tuned", "--nproc-per-node", str(RANKS), "--apply", applied)
        publish(one, many, tuned, forecast, tune_output, applied, dry=options.dry)


@dataclass(frozen=True, slots=True)
class RankForecast:
    """What one rank's records say of several: in words, and the interval of their data wait."""

    text: str
    low: float
    high: float

    def holds(self, share: float) -> bool:
        """Whether a measured share of data wait lies in the interval."""
        return self.low <= share <= self.high


def forecast_ranks(one: Path) -> RankForecast:
    """Have the doctor predict several ranks from the records of one."""
    words = ("doctor", str(one), "--ranks", str(RANKS))
    share = json.loads(headrace(*words, "--json"))["then"]["data_wait_share"]
    return RankForecast(headrace(*words).strip(), share["low"], share["high"])


def run(folder: Path, *flags: str) -> Path:
    """Run the script through `headrace run`, while the host leaves it its cores."""

    def once(number: int) -> Path:
        tried = folder.with_name(f"{folder.name}-{number}")
        headrace("run", "--run-dir", str(tried), *flags, str(SCRIPT))
        return tried

    return run_undisturbed(once).rename(folder)


def headrace(*words: str) -> str:
    """Run a verb; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *words],
        capture_output=True, text=True, check=False, timeout=4 * LONGEST_S,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"headrace {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout + (done.stderr if words[0] == "tune" else "")


def applied_in(folder: Path) -> str:
    """Return what the fastest trial of the tuning had applied."""
    (tuning,) = folder.glob("tune-*")
    trials = {path: read_steps(open_records(path)).wall_ns.mean() for path in tuning.iterdir()}
    fastest = min(trials, key=trials.__getitem__)
    checked = fastest / "prediction.json"
    if not checked.exists():
        sys.exit(f"tuning found nothing that helps: {trials}")
    return ",".join(json.loads(checked.read_text(encoding="utf-8"))["applied"])


def findings_of(folder: Path) -> list[dict[str, Any]]:
    """Return what was reported at the end of a run, worst first."""
    diagnosis = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8"))
    return list(diagnosis["findings"])


def rules_of(folder: Path) -> list[str]:
    """Return the rules that fired, worst first."""
    return [finding["rule"] for finding in findings_of(folder)]


def first_finding(folder: Path) -> dict[str, Any]:
    """Return the finding that is ranked first."""
    return next(iter(findings_of(folder)), {})


def wait_share(folder: Path) -> float:
    """Return the measured share of step time that waits for data."""
    return read_steps(open_records(folder)).share("data_wait")


def step_ms(folder: Path) -> float:
    """Return the mean training step."""
    return float(read_steps(open_records(folder)).wall_ns.mean() / 1e6)


def publish(
    one: Path, many: Path, tuned: Path, forecast: RankForecast, tune_output: str, applied: str,
    *, dry: bool,
) -> None:  # fmt: skip
    """Write the page and the pictures."""
    finding = first_finding(many)
    cause = finding.get("cause") or {}
    speedup = compare(open_records(many), open_records(tuned)).speedup
    table = [
        "| run | step, ms | data wait | first finding | line |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {step_ms(folder):.1f} | {wait_share(folder):.1%} | "
            f"{first_finding(folder).get('rule', 'nothing')} | {place_of(first_finding(folder))} |"
            for name, folder in (
                ("one rank", one),
                (f"{RANKS} ranks", many),
                (f"{RANKS} ranks, `--apply {applied}`", tuned),
            )
        ),
        "", f"Predicted for {RANKS} ranks from the records of one:", "", "```",
        forecast.text, "```", "",
        "Output of `headrace tune`:", "", "```", tune_output.strip(), "```", "",
        f"![Cores of {RANKS} ranks, unchanged](reference-a-before.png)", "",
        f"![Cores of {RANKS} ranks with the remedy](reference-a-after.png)",
    ]  # fmt: skip
    right = finding.get("rule") and cause.get("function", "").rpartition(".")[2] in {
        each.rpartition(".")[2] for each in CAUSES
    }
    rows = [
        Row("tuned speed / unchanged", [speedup], ">= 2"),
        Row("predicted by one rank's own diagnosis", [float(RULE in rules_of(one))], ">= 1"),
        Row(f"{RULE} comes first at two ranks", [float(rules_of(many)[:1] == [RULE])], ">= 1"),
        Row("the line is named at two ranks", [float(bool(right))], ">= 1"),
        Row("data wait at two ranks lies in the predicted interval",
            [float(forecast.holds(wait_share(many)))], ">= 1"),
        Row("data wait predicted for two ranks, upper end", [forecast.high], ">= 0.20"),
        Row("data wait of one rank", [wait_share(one)], "<= 0.05"),
        Row("data wait of two ranks", [wait_share(many)], ">= 0.20"),
        Row("data wait of two ranks, tuned", [wait_share(tuned)], ""),
    ]  # fmt: skip
    if dry:
        print("\n".join(table), *(row.line() for row in rows), sep="\n")
        return
    heatmap_picture(many, DOCS / "reference-a-before.png")
    heatmap_picture(tuned, DOCS / "reference-a-after.png")
    write_section(
        "Reference case A", "python benchmarks/reference_a/run.py", table, rows,
        page=DOCS / "reference_a.md",
    )  # fmt: skip


def place_of(finding: dict[str, Any]) -> str:
    """Return file, line and function of a finding's cause."""
    cause = finding.get("cause")
    return f"{Path(cause['file']).name}:{cause['line']} {cause['function']}" if cause else ""


if __name__ == "__main__":
    main()
