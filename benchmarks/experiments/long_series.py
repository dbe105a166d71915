"""Seconds to list and to compare fifty runs, each with a time series of 100,000 points.

    python benchmarks/experiments/long_series.py

One short job is recorded and its folder copied for each run; their series are inserted into
MLflow's SQLite database as its client would log them, at a tenth of a millisecond a point.
Commands are timed whole, start of Python included. Writes a section of docs/experiments.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from report import Row, write_section  # noqa: E402 - stands above this folder

PAGE = HERE.parents[1] / "docs" / "experiments.md"
SCRIPT = HERE.parents[1] / "tests" / "scripts" / "swept.py"
MODULE = [sys.executable, "-m", "headrace.cli.main"]
MOST_S = 2.0


def main() -> None:
    """Make the runs, time the commands, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = make_runs(Path(folder), options.runs, options.points)
        page = str(Path(folder, "page.html"))
        listed = [timed(folder, "runs", "ls") for _ in range(options.rounds)]
        compared = [timed(folder, "compare", *names) for _ in range(options.rounds)]
        pages = [timed(folder, "compare", *names, "--html", page) for _ in range(options.rounds)]
        size_mb = Path(folder, "runs", "mlflow.db").stat().st_size / 1e6
    text = [f"{options.runs} runs, {options.points:,} points each: a database of {size_mb:.0f} MB."]
    rows = [
        Row("`headrace runs ls`, s", listed, ""),
        Row("`headrace compare` of all, s", compared, ""),
        Row("the two together, s", [a + b for a, b in zip(listed, compared, strict=True)],
            f"<= {MOST_S:g}"),
        Row("`headrace compare --html` of all, with their curves, s", pages, ""),
    ]  # fmt: skip
    command = "python benchmarks/experiments/long_series.py"
    write_section("Many long runs", command, [*text, ""], rows, page=PAGE, dry=options.dry)


def timed(folder: str, *words: str) -> float:
    """Return the seconds that a command takes."""
    began_s = time.perf_counter()
    done = subprocess.run(
        [*MODULE, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{words[:2]}: {done.stderr}")
    return time.perf_counter() - began_s


def make_runs(folder: Path, count: int, points: int) -> list[str]:
    """Make runs with a long series each; return their names."""
    environment = {**os.environ, "HEADRACE_TRACKING_URI": ""}
    command = [*MODULE, "run", "--name", "run-0", "--experiment", "long", str(SCRIPT)]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    runs, names = folder / "runs", [f"run-{number}" for number in range(count)]
    sent = json.loads((runs / names[0] / "experiment" / "sent.json").read_text())
    with closing(sqlite3.connect(runs / "mlflow.db")) as database:
        for number, name in enumerate(names):
            run_id = f"{number:032x}"
            copy_run(database, sent["run_id"], run_id, name)
            if number:
                shutil.copytree(runs / names[0], runs / name)
            (runs / name / "experiment" / "sent.json").write_text(
                json.dumps({**sent, "run_id": run_id})
            )
            database.executemany(
                "INSERT INTO metrics (key, value, timestamp, step, is_nan, run_uuid) "
                "VALUES ('long', ?, ?, ?, 0, ?)",
                series(points, run_id),
            )
            database.execute(
                "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) "
                "VALUES ('long', 0.0, ?, ?, 0, ?)", (points, points - 1, run_id),
            )  # fmt: skip
            database.commit()
    return names


def copy_run(database: sqlite3.Connection, known: str, run_id: str, name: str) -> None:
    """Copy a run of MLflow's under another id and name."""
    for table, key in (("runs", "run_uuid"), ("params", "run_uuid"), ("tags", "run_uuid"),
                       ("metrics", "run_uuid"), ("latest_metrics", "run_uuid")):  # fmt: skip
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        values = ["?" if column == key else column for column in columns]
        if table == "runs":
            values = [f"'{name}'" if column == "name" else value
                      for column, value in zip(columns, values, strict=True)]  # fmt: skip
        database.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) "  # noqa: S608 - names of its own columns
            f"SELECT {', '.join(values)} FROM {table} WHERE {key} = ?",
            (run_id, known),
        )


def series(points: int, run_id: str) -> Iterator[tuple[float, int, int, str]]:
    """Yield (value, timestamp, step, run) of each point."""
    for step in range(points):
        yield math.exp(-step / points) * (1 + 0.1 * math.sin(step / 50)), step, step, run_id


if __name__ == "__main__":
    main()
