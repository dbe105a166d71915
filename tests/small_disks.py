"""Small disks, which are soon full: for a test, or for one process that alone sees it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from machine import skip_without


@contextmanager
def mounted_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk of this size, as mount has it, at a folder, which is made; needs root."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    skip_without("disks", is_there=is_mounted)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


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
