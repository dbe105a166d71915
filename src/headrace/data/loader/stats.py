"""How long the script waited for data, measured at the loader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class LoaderStats:
    """What one loader has delivered since it was made, or since `reset`.

    Attributes:
        batches: Batches delivered.
        samples: Samples in them, on this rank.
        wait_ns: Time the script spent in `iter(loader)` and waiting for batches, in nanoseconds:
            the data wait. In the first epoch workers start in it.
        elapsed_ns: Time from `iter(loader)` to the end of the last step, summed over iterations,
            in nanoseconds: data wait and everything else.
        first_batch_ns: The newest iteration's time from `iter(loader)` to the first batch.
    """

    batches: int = 0
    samples: int = 0
    wait_ns: int = 0
    elapsed_ns: int = 0
    first_batch_ns: int = 0

    @property
    def data_wait_share(self) -> float:
        """Data wait / step time, 0 to 1; 0 before anything was measured."""
        return self.wait_ns / self.elapsed_ns if self.elapsed_ns else 0.0

    def reset(self) -> None:
        """Begin anew, at an epoch's start for example."""
        self.batches = self.samples = self.wait_ns = self.elapsed_ns = self.first_batch_ns = 0
