"""What processes beside a launcher have in common: how they begin, and how they answer."""

from __future__ import annotations

import signal
import sys

from headrace.core.lifetime import die_with_parent, leave_signals_to_the_parent
from headrace.data.copies.request import CopyAnswer
from headrace.data.storage import declare_leaf


def begin_beside(parent_pid: int) -> None:
    """Have this process end with whoever started it, and by nothing else."""
    leave_signals_to_the_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent(parent_pid)
    declare_leaf()


def answer_with(answer: CopyAnswer) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(f"{answer.to_json()}\n")
    sys.stdout.flush()
