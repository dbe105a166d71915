"""Reports of packing and of checks: progress, faults, and bad files with their limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import TooManyBadSamplesError

FaultKind = Literal[
    "cut", "header", "trailing", "name", "type", "duplicate", "order", "size", "checksum",
    "missing", "extra", "index", "manifest", "unreadable",
]  # fmt: skip
"""Kinds of faults:

cut         an object ends before what it promises
header      a tar header is damaged
trailing    bytes after a tar's end
name        a member's name is refused
type        a link, device or other member that is no file
duplicate   one key holds two files of one extension, or two samples share a key
order       a sample's members do not lie together
size        an object or member has another size than the index says
checksum    a member's bytes differ from the index
missing     the index names what the dataset does not hold
extra       the dataset holds what the index does not name
index       the index does not fit the manifest
manifest    the manifest does not fit itself
unreadable  an object exists but cannot be read
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: Which sort; see FaultKind.
        where: The object's path below the dataset's URL.
        message: What is wrong, with the member's name and bytes where there are any.
    """

    kind: FaultKind
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A file that is no sample.

    Attributes:
        file: Its path below the source's URL, or its URL.
        reason: What is wrong with it, one sentence or more.
    """

    file: str
    reason: str


def list_faults(faults: Sequence[Fault], limit: int = 20) -> str:
    """Return faults as lines for an error's message: the first `limit`, and how many more."""
    lines = [f"  {fault}" for fault in faults[:limit]]
    if len(faults) > limit:
        lines.append(f"  and {len(faults) - limit} more")
    return "\n".join(lines)


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


ProgressCallback = Callable[[PackProgress], None]


def report_listing(tell: ProgressCallback) -> Callable[[int], None]:
    """Say that listing begins; return what is called with the files listed so far."""
    tell(PackProgress(stage="listing"))
    return lambda count: tell(PackProgress(stage="listing", samples=count))


class ProgressTally:
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

    def __init__(
        self, tell: ProgressCallback, stage: str, of_samples: int, resumed: int = 0
    ) -> None:
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


_SHOWN = 100


def check_bad_files(bad: Sequence[BadFile], max_bad: int, url: str, *, complete: bool) -> None:
    """Raise TooManyBadSamplesError, naming the files, where more are bad than may be.

    Args:
        bad: What was left out.
        max_bad: How many may be.
        url: The source.
        complete: Whether all of the source was looked at.
    """
    if complete and len(bad) <= max_bad:
        return
    lines = [f"  {each.file}: {each.reason}" for each in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"  and {len(bad) - _SHOWN} more")
    advice = (
        f"Correct or remove them, or leave them out with --max-bad {len(bad)}."
        if complete
        else "Packing stopped early, because so many are bad. Is this the right source?"
    )
    raise TooManyBadSamplesError(
        f"{url}: {len(bad)} files cannot be used, {max_bad} may be left out (--max-bad):\n"
        + "\n".join(lines)
        + f"\n{advice}"
    )
