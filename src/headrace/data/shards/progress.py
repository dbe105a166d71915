"""How far a packing is, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PackProgress:
    """How far a packing is.

    Attributes:
        stage: "listing", "packing", "reading", "checking", "indexing".
        samples: Samples done.
        of_samples: Samples in all; 0 while they are being listed.
        read_bytes: Bytes read in this process's run.
        resumed: Samples that an earlier run had done.
        bad: Samples left out in this run.
    """

    stage: str
    samples: int = 0
    of_samples: int = 0
    read_bytes: int = 0
    resumed: int = 0
    bad: int = 0


Progress = Callable[[PackProgress], None]


def listing(tell: Progress) -> Callable[[int], None]:
    """Say that listing begins; return what is called with the files listed so far."""
    tell(PackProgress(stage="listing"))
    return lambda count: tell(PackProgress(stage="listing", samples=count))


class Tally:
    """Adds up what is reported and tells it on.

    Args:
        tell: Who is told.
        stage: What is going on.
        of_samples: Samples in all.
        resumed: Of these, done before.

    Attributes:
        bad: Samples left out so far.
        read_bytes: Bytes read so far.
    """

    def __init__(self, tell: Progress, stage: str, of_samples: int, resumed: int = 0) -> None:
        self.bad = 0
        self._tell = tell
        self._stage = stage
        self._of_samples = of_samples
        self._resumed = resumed
        self._samples = resumed
        self.read_bytes = 0

    def add(self, samples: int, read_bytes: int, bad: int) -> None:
        """Note some more samples, bytes read, and samples left out."""
        self._samples += samples
        self.read_bytes += read_bytes
        self.bad += bad
        self._tell(
            PackProgress(
                stage=self._stage,
                samples=self._samples,
                of_samples=self._of_samples,
                read_bytes=self.read_bytes,
                resumed=self._resumed,
                bad=self.bad,
            )
        )
