"""Which processes may call the object-store client, and which must not.

After any call of it a forked child hangs, even with a client of its own: the client's threads do
not exist there, its locks do. So a process that may fork (a training process) leaves such calls
to a helper; a leaf, which does not fork, makes them itself; and a forked child of a process that
made one gets an error at once instead of a hang.
"""

from __future__ import annotations

import multiprocessing
import os

from headrace.core.errors import ForkedClientError


class _State:
    """What this process declared and did; a forked child starts from its parent's."""

    leaf = False
    called = False
    parent_called = False


def declare_leaf() -> None:
    """Promise that this process will not fork, so that it may call object stores itself.

    Workers and the command line declare it; a training process must not, because its data
    loaders fork.
    """
    _State.leaf = True


def is_leaf() -> bool:
    """Tell whether this process said, or implies, that it will not fork.

    A daemonic process of `multiprocessing` implies it: it may have no children. DataLoader's
    workers are such; ranks started by `torch.multiprocessing.spawn` are not.
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
