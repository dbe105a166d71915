"""The first score of each script, written once and never changed: nothing was tuned to it."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).with_name("first_scores.json")


def read_first_scores(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the scores of those of the scripts that have one, by script."""
    scores = _all_scores()
    return {name: scores[name] for name in names if name in scores}


def add_first_score(name: str, score: dict[str, Any]) -> None:
    """Keep a script's score, with commit, day and torch's version, unless it has one already."""
    scores = _all_scores()
    if name in scores:
        return
    scores[name] = {**_provenance(), **score}
    FILE.write_text(json.dumps(scores, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _all_scores() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def _provenance() -> dict[str, str]:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    return {"commit": described, "date": today, "torch": torch.__version__}
