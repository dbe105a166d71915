"""A process whose disk is a small one: a file system of its own, seen by nobody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_AS_ITS_PARENT = (
    "import os, sys; sys.argv[2] = str(os.getppid()); from {module} import main; main()"
)


def run_beside(
    module: str, disk: Path, size: str, told: str, *folders: str
) -> subprocess.CompletedProcess[str]:
    """Run a process that the launcher starts beside it, which is told a line.

    Args:
        module: Its module.
        disk: An empty folder, where the process finds the disk.
        size: How much that holds, as mount has it.
        told: The line.
        folders: What is made on the disk before.
    """
    made = " ".join(f"'{disk}/{folder}'" for folder in (".", *folders))
    script = f"mount -t tmpfs -o size={size} none '{disk}' && mkdir -p {made} && exec \"$@\""
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh",
         sys.executable, "-c", _AS_ITS_PARENT.format(module=module), "--parent", "0"],
        input=f"{told}\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
