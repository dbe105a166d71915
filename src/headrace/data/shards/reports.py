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

cut         an object is shorter than it claims
header      a tar header is damaged
trailing    bytes after a tar's end
name        a member's name is refused
type        a link, device or other member that is no file
duplicate   one key holds two files of one extension, or two samples share a key
order       a sample's members are not adjacent
size        an object or member has another size than the index says
checksum    a member's bytes differ from the index
missing     the index names a member that the dataset lacks
extra       the dataset has a member that the index lacks
index       the index does not fit the manifest
manifest    the manifest does not fit itself
unreadable  an object exists but cannot be read
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a dataset.

    Attributes:
        kind: The kind of fault.
        where: The object's path below the dataset's URL.
        message: The fault, with the member's name and bytes where there are any.
    """

    kind: FaultKind
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A file that cannot become a sample.

    Attributes:
        file: Its path below the source's URL, or its URL.
        reason: Why not, one sentence or more.
    """

    file: str
    reason: str


def list_faults(faults: Sequence[Fault], limit: int = 20) -> str:
    """Return faults as lines of an error message: the first `limit`, and the number of others."""
    lines = [f"  {fault}" for fault in faults[:limit]]
    if len(faults) > limit:
        lines.append(f"  and {len(faults) - limit} more")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackProgress:
    """The progress of packing, indexing or checking.

    Attributes:
        stage: "listing", "packing", "reading", "checking", "indexing".
        samples: Samples done.
        of_samples: Samples in all; 0 while they are being listed.
        read_bytes: Bytes read in this run.
        resumed: Samples that an earlier run had finished.
        bad: Samples left out in this run.
    """

    stage: str
    samples: int = 0
    of_samples: int = 0
    read_bytes: int = 0
    resumed: int = 0
    bad: int = 0


ProgressCallback = Callable[[PackProgress], None]


def report_listing(on_progress: ProgressCallback) -> Callable[[int], None]:
    """Report that listing begins; return the callback for the number of files listed."""
    on_progress(PackProgress(stage="listing"))
    return lambda count: on_progress(PackProgress(stage="listing", samples=count))


class ProgressTally:
    """Sums up counts and reports the progress.

    Args:
        on_progress: The progress callback.
        stage: The stage; see `PackProgress`.
        of_samples: Samples in all.
        resumed: Samples done before.

    Attributes:
        bad: Samples left out so far.
        read_bytes: Bytes read so far.
    """

    def __init__(
        self, on_progress: ProgressCallback, stage: str, of_samples: int, resumed: int = 0
    ) -> None:
        self.bad = 0
        self._on_progress = on_progress
        self._stage = stage
        self._of_samples = of_samples
        self._resumed = resumed
        self._samples = resumed
        self.read_bytes = 0

    def add(self, samples: int, read_bytes: int, bad: int) -> None:
        """Add samples, bytes read, and samples left out."""
        self._samples += samples
        self.read_bytes += read_bytes
        self.bad += bad
        self._on_progress(
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
    """Raise TooManyBadSamplesError, naming the files, where more are bad than allowed.

    Args:
        bad: The files left out.
        max_bad: Number of files that may be left out.
        url: The source.
        complete: Whether all of the source was read.
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
