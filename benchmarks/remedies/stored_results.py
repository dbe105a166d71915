"""What was measured of each case, stored, so that a table can be made in several stretches."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cases import Case

from headrace.observe.whatif.comparison import CheckedPrediction

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "bench-data" / "predictions"


@dataclass(frozen=True)
class Measured:
    """What came of a case.

    Attributes:
        pairs: Each remedy's name, with what was predicted and measured in each round; None: the
            doctor did not propose it.
        stolen: What the host withheld from the runs, of the CPU time they wanted: the median.
    """

    pairs: tuple[tuple[str, tuple[CheckedPrediction | None, ...]], ...]
    stolen: float


def store_result(case: Case, measured: Measured, code_before: list[str]) -> None:
    """Store what came of a case, where the code is committed and as it was before."""
    if not is_committed() or code() != code_before:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    pairs = [
        (name, [None if each is None else asdict(each) for each in rounds])
        for name, rounds in measured.pairs
    ]
    content = {"code": code(), "stolen": measured.stolen, "pairs": pairs}
    _file(case).write_text(json.dumps(content, indent=1) + "\n")


def load_result(case: Case, rounds: int, most_stolen: float) -> Measured | None:
    """Return what came of a case with the code as it is, unless half its runs were disturbed.

    Args:
        case: The case.
        rounds: So many.
        most_stolen: Of the CPU time that its runs wanted.
    """
    if not _file(case).exists():
        return None
    content = json.loads(_file(case).read_text())
    if content["code"] != code() or content["stolen"] > most_stolen:
        return None
    if any(len(each) != rounds for _, each in content["pairs"]):
        return None
    pairs = tuple((name, tuple(map(_checked, each))) for name, each in content["pairs"])
    return Measured(pairs, content["stolen"])


def _checked(content: dict[str, Any] | None) -> CheckedPrediction | None:
    return (
        None
        if content is None
        else CheckedPrediction(**{**content, "applied": tuple(content["applied"])})
    )


def code() -> list[str]:
    """Return what the committed code is known by: Headrace's, and this benchmark's."""
    return _git("rev-parse", "HEAD:src", "HEAD:benchmarks/remedies", "HEAD:benchmarks/cpu_steal.py")


def is_committed() -> bool:
    """Whether the code is as the last commit has it."""
    return not _git("status", "--porcelain", "--", "src", "benchmarks")


def _git(*arguments: str) -> list[str]:
    ended = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return ended.stdout.split()


def _file(case: Case) -> Path:
    return FOLDER / f"{case.name.replace('/', '-')}.json"
