"""What Headrace adds before a script's first line, after its last, and before a first batch.

    python benchmarks/startup/run.py

All are shares of what `import torch` takes in the same round: absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from report import Row, write_section  # noqa: E402 - stands above this folder

PAGE = HERE.parents[1] / "docs" / "overhead.md"
PYTHON = [sys.executable]
HEADRACE = [sys.executable, "-m", "headrace.cli.main", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
RANKS = ["--nproc-per-node", "2"]
STARTS = {
    "python": [*PYTHON],
    "headrace": [*HEADRACE],
    "torchrun": [*TORCHRUN, *RANKS],
    "headrace, ranks": [*HEADRACE, *RANKS],
}


def started(command: list[str], folder: Path) -> tuple[float, float]:
    """Run the script; return the seconds until its first line, and from its last to the prompt."""
    for left in folder.glob("moments-*"):
        left.unlink()
    began_s = time.time()
    subprocess.run(
        [*command, str(HERE / "moments.py")], cwd=folder, check=True, capture_output=True
    )
    ended_s = time.time()
    moments = [tuple(map(float, path.read_text().split())) for path in folder.glob("moments-*")]
    return max(first for first, _ in moments) - began_s, ended_s - max(last for _, last in moments)


def taken(code: str) -> float:
    """Return the seconds that a Python process takes with some code."""
    began_s = time.perf_counter()
    subprocess.run([*PYTHON, "-c", code], check=True)
    return time.perf_counter() - began_s


def first_batch(kind: str) -> float:
    """Return the seconds until a loader's first batch."""
    ended = subprocess.run(
        [*PYTHON, str(HERE / "first_batch.py"), kind], check=True, capture_output=True, text=True
    )
    return float(ended.stdout)


def one_round(number: int, folder: Path) -> dict[str, float]:
    """Return all figures of a round, in seconds, measured in an order of its own."""
    found: dict[str, float] = {}
    empty_s = taken("pass")
    found["torch"] = taken("import torch") - empty_s
    found["headrace import"] = taken("import headrace") - empty_s
    names = list(STARTS)
    for name in names[number % 4 :] + names[: number % 4]:
        found[f"{name}: first"], found[f"{name}: end"] = started(STARTS[name], folder)
    for kind in ("torch", "headrace") if number % 2 else ("headrace", "torch"):
        found[f"{kind}: batch"] = first_batch(kind)
    return found


def main() -> None:
    """Measure, print, and write the section."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="Write nothing.")
    arguments = parser.parse_args()
    os.environ.pop("HEADRACE_RUN_DIR", None)
    with tempfile.TemporaryDirectory() as made:
        one_round(0, Path(made))  # warms the disk's cache, and is not counted
        rounds = [one_round(number, Path(made)) for number in range(arguments.rounds)]

    def later(one: str, other: str) -> list[float]:
        return [(found[one] - found[other]) / found["torch"] for found in rounds]

    rows = [
        Row("first line, later than python", later("headrace: first", "python: first"), "<= 0.30"),
        Row(
            "first line of two ranks, later than torchrun",
            later("headrace, ranks: first", "torchrun: first"), "<= 0.30",
        ),
        Row("prompt after the last line, later than python",
            later("headrace: end", "python: end"), "<= 0.40"),
        Row("prompt after the last line of two ranks, later than torchrun",
            later("headrace, ranks: end", "torchrun: end"), "<= 0.40"),
        Row("import headrace", [each["headrace import"] / each["torch"] for each in rounds],
            "<= 0.02"),
    ]  # fmt: skip
    batches = [each["headrace: batch"] - each["torch: batch"] for each in rounds]
    rows.append(Row("first batch, seconds later than torch's", batches, "<= 0.3"))
    torch_s = statistics.median(found["torch"] for found in rounds)
    table = [
        f"As a share of the time of `import torch` in the same round ({torch_s:.2f} s), with",
        "recording on; the script is a short training with a verdict and a page at its end.",
    ]
    write_section(
        "Start-up", "python benchmarks/startup/run.py", table, rows, page=PAGE, dry=arguments.dry
    )


if __name__ == "__main__":
    main()
