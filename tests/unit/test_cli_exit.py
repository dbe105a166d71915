"""How the command line ends: a thread at work must not meet an interpreter that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "utf-8:strict"},
    ],
)
def test_what_the_output_s_encoding_lacks_is_shown_by_its_number(
    tmp_path: Path, variables: dict[str, str]
):
    (tmp_path / "train.py").touch()
    words = ["run", "--dry-run", "train.py", "\u2026", "\udcff"]
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *words], cwd=tmp_path,
        env={**os.environ, **variables}, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert b"\\udcff" in ended.stdout


@pytest.mark.parametrize(("busy", "printed"), [("busy", "said "), ("idle", "said taken apart\n")])
def test_the_interpreter_is_taken_apart_only_once_no_thread_is_at_work(busy: str, printed: str):
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, "doctor", "no-such-run", busy],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, printed)
    assert "There is no run 'no-such-run'" in ended.stderr


@pytest.mark.parametrize("verb", ["run", "resume", "doctor"])
def test_a_current_folder_that_is_gone_is_one_sentence(tmp_path: Path, verb: str):
    (tmp_path / "gone").mkdir()
    ended = subprocess.run(
        ["sh", "-c", 'rmdir ../gone; exec "$@"', "sh", sys.executable, "-P", "-m",
         "headrace.cli.main", verb, "train.py"],
        cwd=tmp_path / "gone", capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.startswith("headrace: The current folder cannot be read (No such file")
    assert "Traceback" not in ended.stderr
