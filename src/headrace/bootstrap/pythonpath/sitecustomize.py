"""The first code in every Python process of a job; found through PYTHONPATH.

It waits for torch, or for Headrace's own loader, to be imported, and does nothing in a process that
imports neither. Then it takes its folder off `sys.path`, so that the script finds what it would
have found, and runs the user's own sitecustomize where there is one.
"""

from __future__ import annotations

import signal

# Ctrl-C would make Python say that it failed to import the site module, and exit with 1. Until the
# script begins, it ends this process as it ends one that handles no signals.
_ON_CTRL_C = signal.getsignal(signal.SIGINT)
if _ON_CTRL_C is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_OWN_FOLDER = str(Path(__file__).parent)


def _run_user_sitecustomize() -> None:
    sys.path[:] = [entry for entry in sys.path if entry != _OWN_FOLDER]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


# Whatever is wrong with this, the script runs.
with contextlib.suppress(Exception):
    from headrace.bootstrap.process_start import prepare_process

    prepare_process()
if _ON_CTRL_C is signal.default_int_handler and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
    signal.signal(signal.SIGINT, _ON_CTRL_C)
_run_user_sitecustomize()
