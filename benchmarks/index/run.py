"""The index of ten million samples: the time to open it, a process's memory, bytes a member.

python benchmarks/index/run.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from synthetic import synthetic

from report import Row, write_section

SHARDS, ROUNDS = 7813, 5
NOTES = """
Each round is a fresh process: it imports what it needs, opens the index (mapped, its file in the
page cache) and looks up 20,000 random samples. Memory is the private memory that this adds to the
process.
""".strip()


def main() -> None:
    """Measure and write the section "Index" of docs/benchmarks.md."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "dataset"
        manifest = synthetic(folder, SHARDS)
        rounds = [measure(folder) for _ in range(ROUNDS)]
    description = (
        f"{manifest.num_samples:,} samples in {SHARDS:,} shards, {manifest.num_members:,} files."
    )
    rows = [
        Row("seconds to open", [found["opened_s"] for found in rounds], "<= 1"),
        Row("private memory, MB", [found["private_mb"] for found in rounds], "<= 50"),
        Row("bytes a member", [manifest.index_bytes / manifest.num_members], "<= 64"),
    ]
    write_section("Index", "python benchmarks/index/run.py", [description, "", NOTES], rows)


def measure(folder: Path) -> dict[str, float]:
    """Open the index once."""
    script = Path(__file__).with_name("open_once.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
