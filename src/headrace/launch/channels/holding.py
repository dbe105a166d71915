"""What holds a job's channels while it lasts: processes beside the script, let go after it."""

from __future__ import annotations

from typing import Protocol

_HOLDERS: set[int] = set()


class Held(Protocol):
    """Channels that are there until they are let go."""

    def failure(self) -> str | None:
        """Return why the script did not get all of them; None: nothing is known of that."""

    def end(self, exit_code: int) -> None:
        """Let them go.

        Args:
            exit_code: How the script ended.
        """


def holders() -> set[int]:
    """Return this process's children that hold channels until it ends."""
    return set(_HOLDERS)


def holds(*pids: int) -> None:
    """Note children that do."""
    _HOLDERS.update(pids)


def holds_no_more(*pids: int) -> None:
    """Forget children that did."""
    _HOLDERS.difference_update(pids)
