"""Whether this process may call object stores: not where it forks, and not in a forked child.

After any call of the object-store client a forked child hangs, even with a client of its own: the
client's threads do not exist there, but its locks do. So a process that may fork (a training one)
leaves such calls to a subprocess; a leaf makes them itself, and its forked child gets an error.
"""

from __future__ import annotations

import multiprocessing
import os

from headrace.core.errors import ForkedClientError


class _State:
    """This process's declarations and calls; a forked child derives its own from its parent's."""

    leaf = False
    called = False
    parent_called = False


def declare_leaf() -> None:
    """Declare that this process will not fork; workers and the command line do."""
    _State.leaf = True


def is_leaf() -> bool:
    """Return whether this process declared, or implies, that it will not fork.

    A daemonic process of `multiprocessing` implies it: it may have no children. DataLoader's
    workers are daemonic; ranks started by `torch.multiprocessing.spawn` are not.
    """
    return _State.leaf or multiprocessing.current_process().daemon


def enter_client() -> None:
    """Note that this process is about to call the object-store client."""
    _State.called = True


def refuse_after_fork() -> None:
    """Raise ForkedClientError in a forked child of a process that called the client."""
    if _State.parent_called:
        raise ForkedClientError(
            f"Process {os.getpid()} was forked from one that had already called an object store, "
            "whose client does not survive a fork. Either start this process with the 'spawn' or "
            "'forkserver' method (DataLoader: multiprocessing_context='forkserver'), or do not "
            "call declare_leaf() or open_store(client='direct') before forking."
        )


def _after_fork_in_child() -> None:
    _State.parent_called = _State.parent_called or _State.called
    _State.called = False
    _State.leaf = False


os.register_at_fork(after_in_child=_after_fork_in_child)
