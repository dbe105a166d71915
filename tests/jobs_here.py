"""Whole jobs whose launcher runs within the test's process, with what all their processes print."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs import run_here


def run_job(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `headrace run <arguments>`, its launcher within this process.

    As `jobs.run`, but for the start of one Python. What processes of the job write to the standard
    streams that they inherit comes before what the launcher itself writes.
    """
    return run_verb(folder, "run", *arguments, **extra)


def run_verb(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `headrace <arguments>` likewise."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _written_to(1, out.fileno()), _written_to(2, err.fileno()):
            ended = run_here(folder, *arguments, **extra)
        inherited = []
        for file in (out, err):
            file.seek(0)
            inherited.append(file.read().decode())
    return subprocess.CompletedProcess(
        ended.args, ended.returncode, inherited[0] + ended.stdout, inherited[1] + ended.stderr
    )


@contextmanager
def _written_to(stream: int, file: int) -> Iterator[None]:
    """Have one of this process's standard streams lead to a file meanwhile."""
    before = os.dup(stream)
    os.dup2(file, stream)
    try:
        yield
    finally:
        os.dup2(before, stream)
        os.close(before)
