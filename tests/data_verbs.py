"""`headrace data` within the tests' process, on local files, which need no object-store client."""

from __future__ import annotations

import subprocess
from pathlib import Path

from headrace.data.storage.client import fork_state
from jobs import run_here


def run_data_verb(
    folder: Path, *arguments: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `headrace data <arguments>`, whose URLs are paths on this host."""
    called = fork_state._State.called
    ended = run_here(folder, "data", *map(str, arguments), **environment)
    assert fork_state._State.called == called, "a verb called an object store in the tests' process"
    return ended
