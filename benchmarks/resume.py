"""Resume at sample 10^7: the time from `load_state_dict` to the first batch, and the state's size.

python benchmarks/resume.py
"""

from __future__ import annotations

import json
import time

import headrace
from report import Row, write_section

SAMPLES, POSITION, BATCH = 20_000_000, 10_000_000, 256


class Numbers:
    """A dataset of numbers, so that nothing but the order takes time."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    """Measure five times and write the section "Resume" of docs/benchmarks.md."""
    state = headrace.DataLoader(Numbers(), BATCH, shuffle=True, num_workers=0).state_dict()
    state["position"] = POSITION
    seconds = []
    for _ in range(5):
        loader = headrace.DataLoader(Numbers(), BATCH, shuffle=True, num_workers=0)
        began = time.perf_counter()
        loader.load_state_dict(state)
        first = next(iter(loader))
        seconds.append(time.perf_counter() - began)
        assert len(first) == BATCH
    size = float(len(json.dumps(state)))
    table = [f"{SAMPLES:,} samples, resumed at position {POSITION:,}."]
    rows = [Row("seconds to the first batch", seconds, "<= 1"), Row("bytes", [size], "<= 1024")]
    write_section("Resume", "python benchmarks/resume.py", table, rows)


if __name__ == "__main__":
    main()
