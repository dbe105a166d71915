"""A process whose disk is a small one: a file system of its own, seen by nobody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_with_disk(
    module: str, disk: Path, size: str, lines: str, *folders: str
) -> subprocess.CompletedProcess[str]:
    """Run a sidecar.

    Args:
        module: Its module.
        disk: An empty folder, where the process finds the disk.
        size: How much that holds, as mount has it.
        lines: Its request, and messages.
        folders: What is made on the disk before.
    """
    made = " ".join(f"'{disk}/{folder}'" for folder in (".", *folders))
    script = f"mount -t tmpfs -o size={size} none '{disk}' && mkdir -p {made} && exec \"$@\""
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh",
         sys.executable, "-P", "-m", module],
        input=lines, capture_output=True, text=True, check=False,
    )  # fmt: skip
