"""`headrace data` within the tests' process, on local files, leaving that process as it was.

The verbs promise that their process will not fork, which holds for a command line's own process and
not for that of the tests. On local files they do not call the object-store client that needs it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from headrace.data.storage import process
from jobs import run_here


def run_data_verb(
    folder: Path, *arguments: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `headrace data <arguments>`, whose URLs are paths on this host."""
    state = process._State
    leaf, called = state.leaf, state.called
    try:
        return run_here(folder, "data", *map(str, arguments), **environment)
    finally:
        state.leaf = leaf
        assert state.called == called, "a verb called an object store in the tests' process"
