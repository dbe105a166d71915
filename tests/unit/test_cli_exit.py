"""How the command line ends: a thread at work must not meet an interpreter that is gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENDS = """
import atexit, sys, threading
from headrace.cli import main as cli
if sys.argv.pop() == "busy":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
atexit.register(print, "taken apart")
print("said", end=" ")
cli.main()
"""


@pytest.mark.parametrize(("busy", "printed"), [("busy", "said "), ("idle", "said taken apart\n")])
def test_the_interpreter_is_taken_apart_only_once_no_thread_is_at_work(busy: str, printed: str):
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, "doctor", "no-such-run", busy],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, printed)
    assert "There is no run 'no-such-run'" in ended.stderr
