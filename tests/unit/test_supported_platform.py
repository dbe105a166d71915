"""Elsewhere than on 64-bit Linux: one sentence, and `import headrace` works."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAKED = """
import importlib, sys
platform, bits, what = sys.argv[1:4]
import os, pathlib, subprocess, tempfile, typing  # they look at the platform themselves
if what == "headrace.records.reader":
    import psutil, pyarrow
sys.platform = platform
if bits == "32":
    sys.maxsize = 2**31 - 1
if platform == "win32":
    for name in ("fcntl", "resource", "termios", "pty", "grp", "pwd"):
        sys.modules[name] = None  # importing it is an ImportError
import headrace
from headrace.core.errors import HeadraceError, UnsupportedPlatformError
if what == "main":
    sys.argv = ["headrace", "run", "train.py"]
    importlib.import_module("headrace.cli.main").main()
try:
    if what.startswith("headrace."):
        importlib.import_module(what)
    else:
        getattr(headrace, what)
except ImportError as error:
    assert isinstance(error, UnsupportedPlatformError), repr(error)
    assert isinstance(error, HeadraceError)
    print(error)
else:
    print("imported")
"""
MACOS, WINDOWS, BITS = ("darwin", "64"), ("win32", "64"), ("linux", "32")


def _ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FAKED, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("platform", "what", "name"),
    [
        (MACOS, "DataLoader", "macOS"),
        (MACOS, "headrace.train", "macOS"),
        (WINDOWS, "ShardDataset", "Windows"),
        (WINDOWS, "Estimator", "Windows"),
        (WINDOWS, "open_run", "Windows"),  # it locks files
        (WINDOWS, "headrace.sagemaker.pytorch", "Windows"),
        (BITS, "transforms", "Linux with a 32-bit Python"),
        (BITS, "headrace.cluster.agent", "Linux with a 32-bit Python"),
        (("freebsd14", "64"), "headrace.offload.server", "freebsd14"),
    ],
)
def test_what_needs_linux_says_so(platform: tuple[str, str], what: str, name: str):
    ended = _ended(*platform, what)
    assert (ended.returncode, ended.stderr) == (0, "")
    said, *more = ended.stdout.splitlines()
    assert said.startswith(f"Headrace needs 64-bit Linux, and this is {name}: ")
    assert not more


@pytest.mark.parametrize("platform", [MACOS, WINDOWS, BITS])
def test_the_command_line_is_one_sentence(platform: tuple[str, str]):
    ended = _ended(*platform, "main")
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("headrace: Headrace needs 64-bit Linux, and this is ")


@pytest.mark.parametrize(
    ("platform", "what"),
    [(MACOS, "HeadraceError"), (WINDOWS, "HeadraceError"), (MACOS, "headrace.records.reader")],
)
def test_errors_and_the_reader_of_records_can_be_imported(platform: tuple[str, str], what: str):
    ended = _ended(*platform, what)
    assert (ended.stdout, ended.stderr) == ("imported\n", "")
