"""Two ranks and one auxiliary host, all of whose workers are well, and then one is slow.

    python benchmarks/cluster/sharing.py

Preparation takes 40 ms a sample and no core; the slow worker takes ten times as long. Writes a
section of docs/offload.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from launches import headrace, rate, share  # noqa: E402

from cpu_steal import run_undisturbed  # noqa: E402 - stands above this folder
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "offload.md"
RANKS, LOCAL, AUXILIARY, PREPARE_S, SLOWER = 2, 2, 8, 0.040, 10
EPOCH_S = 20.0
WELL = (RANKS * LOCAL + AUXILIARY) / PREPARE_S
ONE_SLOW = (RANKS * LOCAL + AUXILIARY - 1 + 1 / SLOWER) / PREPARE_S


def main() -> None:
    """Measure and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    well, slow = [], []
    for number in range(options.rounds):
        well.append(run_undisturbed(lambda _: run(slow=False)))
        slow.append(run_undisturbed(lambda _: run(slow=True)))
        print(f"round {number + 1}: {rate(well[-1]):.0f} of {WELL:.0f}, with a slow worker "
              f"{rate(slow[-1]):.0f} of {ONE_SLOW:.0f}", flush=True)  # fmt: skip
    rows = [
        Row("all workers equally fast: share of the ideal rate",
            [rate(each) / WELL for each in well], ">= 0.9"),
        Row("one of them 10 times slower: share of the ideal rate",
            [rate(each) / ONE_SLOW for each in slow], ">= 0.9"),
        Row("time of the first rank to end / the last, one worker slow",
            [share(each, "first_seconds") for each in slow], ""),
    ]  # fmt: skip
    command = "python benchmarks/cluster/sharing.py"
    write_section(
        "Two ranks, one auxiliary host, one slow worker",
        command,
        [],
        rows,
        page=PAGE,
        dry=options.dry,
    )


def run(*, slow: bool) -> list[dict[str, Any]]:
    """Run the ranks on a cluster of emulated hosts."""
    ideal = ONE_SLOW if slow else WELL
    arguments = ["--samples", str(int(EPOCH_S * ideal)), "--workers", str(LOCAL)]
    arguments += ["--slow", str(int(slow))]
    flags = ["--engine", "ray", "--group", f"gpu=1:cpus={RANKS * LOCAL}", "--profile", "off"]
    flags += ["--group", f"cpu=1:cpus={AUXILIARY}", "--offload", "cpu", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        return headrace("shared.py", arguments, *flags, "--run-dir", f"{folder}/run")


if __name__ == "__main__":
    main()
