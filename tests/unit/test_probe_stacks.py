"""What the stack sampler sees of a thread, whatever happens meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "probed" / "walked_stacks.py"


def test_a_garbage_collection_amid_a_walk_changes_no_stack() -> None:
    # In a process of its own: without the remedy it may crash.
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(21, 0, True)"] * 19
