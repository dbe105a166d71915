"""Results: printed, and written to docs/benchmarks.md with machine and commit."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Row:
    """One promised figure.

    Attributes:
        what: What is compared.
        values: The ratio in each round.
        target: What was promised, such as ">= 1.15"; "" where the figure is only reported.
    """

    what: str
    values: list[float]
    target: str

    def line(self) -> str:
        """Return the row of a table: median, spread, target, and whether it is met."""
        median = statistics.median(self.values)
        spread = f"{min(self.values):.3g} to {max(self.values):.3g}"
        return (
            f"| {self.what} | {median:.3g} | {spread} | {self.target} | {self._verdict(median)} |"
        )

    def _verdict(self, median: float) -> str:
        if not self.target:
            return ""
        bound = float(self.target.split()[-1])
        met = median >= bound if self.target.startswith(">=") else median <= bound
        return "yes" if met else "no"


def ratio(rounds: list[dict[str, dict[str, float]]], key: str, one: str, other: str) -> list[float]:
    """Return one / other in each round where both were measured."""
    return [
        found[one][key] / found[other][key] for found in rounds if one in found and other in found
    ]


def write_section(
    title: str,
    command: str,
    table: list[str],
    rows: list[Row],
    *,
    page: Path = PAGE,
    dry: bool = False,
) -> None:
    """Print a section and, unless dry, put it into a page in place of the one of that title."""
    lines = [
        f"## {title}", "", f"`{command}` · {machine()}", "", *table, "",
        "| ratio, median over rounds | measured | spread | target | met |",
        "|---|---|---|---|---|", *(row.line() for row in rows if row.values), "",
    ]  # fmt: skip
    section = "\n".join(lines)
    print(section)
    if dry:
        return
    text = page.read_text() if page.exists() else f"# {page.stem.capitalize()}\n\n"
    pattern = re.compile(rf"## {re.escape(title)}\n.*?(?=\n## |\Z)", re.DOTALL)
    text = (
        pattern.sub(lambda _: section, text)
        if pattern.search(text)
        else f"{text.rstrip()}\n\n{section}"
    )
    page.write_text(text.rstrip() + "\n")


def print_medians(rounds: Sequence[Mapping[str, float]]) -> None:
    """Print a table's rows: each figure's median over the rounds, and its range."""
    for name in rounds[0]:
        values = sorted(each[name] for each in rounds)
        print(f"| {name} | {statistics.median(values):.3g} | {values[0]:.3g} to {values[-1]:.3g} |")


def command_line() -> str:
    """Return the command that runs this benchmark, as from the repository's root."""
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    return shlex.join(["python", str(script), *sys.argv[1:]])


def machine() -> str:
    """Return processor, cores, date and commit in one line."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.strip()  # fmt: skip
    today = dt.datetime.now(tz=dt.UTC).date()
    return f"{model}, {os.cpu_count()} cores, {accelerator()} · commit {commit} · {today}"


def accelerator() -> str:
    """Return the accelerator's name, or "no GPU"."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
