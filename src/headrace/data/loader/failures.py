"""A worker's exception in serialised form, with its sample and traceback."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import HeadraceError, UsageError, WorkerError
from headrace.data.loader.dataset_protocol import NativeDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """An exception that was raised while a batch was made."""

    summary: str  # the exception's type and text
    traceback: str
    sample: str  # as far as known
    error: bytes | None  # pickled; None where that is impossible

    @classmethod
    def of(cls, error: BaseException, dataset: Any = None, index: Any = None) -> BatchFailure:
        """Describe `error`, raised while sample `index` of `dataset` was made."""
        try:
            # Here, as most workers never fail.
            from headrace.data.loader.serialization import pickle_for_script

            pickled = pickle_for_script(error)
            if type(error).__module__ != "__main__":  # the script's own are known there alone
                pickle.loads(pickled)
        except Exception:  # noqa: BLE001 - an exception class may be anything; its text remains
            pickled = None
        return cls(
            summary=f"{type(error).__name__}: {_text(error)}",
            traceback="".join(traceback.format_exception(error)) if error.__traceback__ else "",
            sample=describe_sample(dataset, index),
            error=pickled,
        )

    def to_bytes(self) -> bytes:
        """Return the failure pickled, for `from_bytes`."""
        return pickle.dumps((self.summary, self.traceback, self.sample, self.error))

    @classmethod
    def from_bytes(cls, content: bytes) -> BatchFailure:
        """Return the failure that `to_bytes` wrote."""
        names = ("summary", "traceback", "sample", "error")
        return cls(**dict(zip(names, pickle.loads(content), strict=True)))

    def cause(self) -> Any:
        """Return the original exception, or None where it cannot be unpickled here."""
        with contextlib.suppress(Exception):  # its class may be anything
            return pickle.loads(self.error) if self.error is not None else None
        return None

    def in_caller(self, where: str) -> HeadraceError:
        """Return the exception for the caller: Headrace's own, others wrapped.

        `where` names rank and worker, for the message.
        """
        cause = self.cause()
        if type(cause) is UsageError and self.sample != _WHOLE_BATCH:  # a transform's
            return UsageError(f"{cause} That was {self.sample}.")
        if isinstance(cause, HeadraceError):  # it names its object
            return cause
        error = WorkerError(
            f"{where}: {self.summary}\nwhile making {self.sample}.\n"
            f"The worker's traceback:\n{self.traceback}"
        )
        error.__cause__ = cause
        return error


_WHOLE_BATCH = "the batch"


def _text(error: BaseException) -> str:
    """Return an exception's text, whatever its class makes of it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a class of the user's
        return "(its text cannot be formed)"


def describe_sample(dataset: Any, index: Any) -> str:
    """Return a sample's number; a `NativeDataset` adds its key and shard."""
    if index is None:
        return _WHOLE_BATCH
    if isinstance(dataset, NativeDataset):
        with contextlib.suppress(HeadraceError, LookupError, TypeError, ValueError):
            return dataset.describe(index)
    return f"sample {index}"


def sample_at(indices: Sequence[Any], done: int) -> Any:
    """Return the index of the sample that a progress number means; None for the whole batch."""
    return indices[done] if 0 <= done < len(indices) else None
