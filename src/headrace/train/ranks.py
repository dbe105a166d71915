"""What ranks do together, such that all of them learn of any one's failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from headrace.core.errors import CheckpointError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What an action of one rank came to: its value, or what went wrong."""

    value: Any = None
    error: str | None = None


def this_rank() -> int:
    """Return this process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def together(action: Callable[[], T]) -> T:
    """Do `action` on every rank and return this rank's value once all have done it.

    Raises:
        CheckpointError: On every rank, where it failed on any of them.
    """
    outcome, error = _attempt(action)
    _share(_Outcome(error=outcome.error), error)
    value: T = outcome.value
    return value


def gathered(action: Callable[[], T]) -> list[T]:
    """Do `action` on every rank and return every rank's value; raises as `together`."""
    return [each.value for each in _share(*_attempt(action))]


def on_rank_0(action: Callable[[], T]) -> T:
    """Do `action` on rank 0 and return its value on every rank; raises as `together`."""
    outcome, error = _attempt(action) if this_rank() == 0 else (None, None)
    if dist.is_initialized():
        outcomes: list[Any] = [outcome]
        dist.broadcast_object_list(outcomes, src=0)
        outcome = outcomes[0]
    assert outcome is not None
    if outcome.error is not None:
        raise CheckpointError(outcome.error) from error
    value: T = outcome.value
    return value


def _share(outcome: _Outcome, error: BaseException | None) -> list[_Outcome]:
    outcomes: list[Any] = [outcome]
    if dist.is_initialized():
        outcomes = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, outcome)
    failed = {rank: each.error for rank, each in enumerate(outcomes) if each.error is not None}
    if failed:
        raise CheckpointError(_tell(failed, len(outcomes))) from error
    return outcomes


def _attempt(action: Callable[[], Any]) -> tuple[_Outcome, BaseException | None]:
    # Whatever goes wrong must reach the other ranks: they would wait for this one until the
    # process group's deadline. It is raised again once they know.
    try:
        return _Outcome(value=action()), None
    except CheckpointException as error:
        return _Outcome(error=_first_cause(error)), error
    except CheckpointError as error:
        return _Outcome(error=str(error)), error
    except Exception as error:  # noqa: BLE001
        return _Outcome(error=f"{type(error).__name__}: {error}"), error


def _first_cause(error: CheckpointException) -> str:
    rank, (cause, _) = next(iter(error.failures.items()))
    told = str(cause) if isinstance(cause, CheckpointError) else f"{type(cause).__name__}: {cause}"
    return f"rank {rank}: {told}"


def _tell(failed: dict[int, str | None], size: int) -> str:
    messages = set(failed.values())
    if len(messages) == 1 and len(failed) == size:
        return str(messages.pop())
    return " ".join(f"rank {rank}: {message}" for rank, message in failed.items())
