"""The last word to a process that uploads beside the ranks, and its last files."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress


def finished(process: subprocess.Popen[bytes], *, clean: bool, deadline_s: float) -> int:
    """Have a process upload what is left; return its code once it has ended, by force at last.

    Args:
        process: It reads one line about the job's end from its standard input.
        clean: No rank was killed, perhaps in the middle of writing a file.
        deadline_s: How long it may take; it is killed a little later.
    """
    assert process.stdin is not None
    told = {"clean": clean, "deadline_s": deadline_s}
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.close()
    try:
        return process.wait(timeout=deadline_s + 10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
