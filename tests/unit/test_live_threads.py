"""Threads of the live page's server: its end waits for none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import asyncio, sys, threading
from headrace.report.live import threads

began = threading.Event()

def act():
    began.set()
    threading.Event().wait()

async def cancel_it():
    answer = asyncio.create_task(getattr(threads, sys.argv[1])(act))
    await asyncio.to_thread(began.wait)
    answer.cancel()
    await asyncio.wait([answer])
    print("cancelled" if answer.cancelled() else "answered")

asyncio.run(cancel_it())
"""


@pytest.mark.parametrize("kind", ["in_background", "in_own_thread"])
def test_a_process_ends_though_an_answer_is_not_made_yet(kind: str):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, kind], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert done.stdout == "cancelled\n"
