"""Open an index in a process of its own and look samples up: seconds and memory, as a JSON line.

python benchmarks/index/open_once.py FOLDER
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from pathlib import Path

import numpy as np  # noqa: F401 - who trains has it: it is no part of what is measured

_LOOKED_UP = 20_000


def main() -> None:
    """Measure the folder that the command line names."""
    before_kb, began = private_kb(), time.perf_counter()
    from headrace.data.shards.shard_index import open_index

    index = open_index(sys.argv[1])
    opened_s = time.perf_counter() - began
    for sample in random.Random(0).sample(range(len(index)), _LOOKED_UP):
        index.locate(sample)
    print(json.dumps({
        "samples": len(index), "opened_s": opened_s, "private_mb": (private_kb() - before_kb) / 1e3,
    }))  # fmt: skip


def private_kb() -> int:
    """Return the memory of this process that no file backs."""
    found = re.search(r"Anonymous:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main()
