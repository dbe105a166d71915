"""Reports of packing and of checks: progress, faults, and bad files with their limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    """A fault of a dataset."""

    kind: FaultKind
    where: str  # the object's path below the dataset's URL
    message: str  # with the member's name and bytes where there are any

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A file that cannot become a sample."""

    file: str  # its path below the source's URL, or its URL
    reason: str  # one sentence or more

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


def list_faults(faults: Sequence[Fault | BadFile], limit: int = 20) -> str:
    """Return faults as lines of an error message: the first `limit`, and the number of others."""
    lines = [f"  {fault}" for fault in faults[:limit]]
    if len(faults) > limit:
        lines.append(f"  and {len(faults) - limit} more")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackProgress:
    """The progress of packing, indexing or checking."""

    stage: str  # "listing", "packing", "reading", "checking", "indexing"
    samples: int = 0  # done
    of_samples: int = 0  # in all; 0 while they are being listed
    read_bytes: int = 0  # in this run
    resumed: int = 0  # samples that an earlier run had finished
    bad: int = 0  # samples left out in this run


ProgressCallback = Callable[[PackProgress], None]


def report_listing(on_progress: ProgressCallback) -> Callable[[int], None]:
    """Report that listing begins; return the callback for the number of files listed."""
    on_progress(PackProgress(stage="listing"))
    return lambda count: on_progress(PackProgress(stage="listing", samples=count))


class ProgressTally:
    """Sums up counts and reports the progress of a stage; `resumed` samples were done before."""

    def __init__(
        self, on_progress: ProgressCallback, stage: str, of_samples: int, resumed: int = 0
    ) -> None:
        self.progress = PackProgress(
            stage=stage, samples=resumed, of_samples=of_samples, resumed=resumed
        )
        self._on_progress = on_progress

    def add(self, samples: int, read_bytes: int, bad: int) -> None:
        """Add samples, bytes read, and samples left out."""
        before = self.progress
        self.progress = replace(
            before,
            samples=before.samples + samples,
            read_bytes=before.read_bytes + read_bytes,
            bad=before.bad + bad,
        )
        self._on_progress(self.progress)


_SHOWN = 100


def check_bad_files(bad: Sequence[BadFile], max_bad: int, url: str, *, complete: bool) -> None:
    """Raise TooManyBadSamplesError, naming the files, where more are bad than allowed."""
    if complete and len(bad) <= max_bad:
        return
    advice = (
        f"Correct or remove them, or leave them out with --max-bad {len(bad)}."
        if complete
        else "Packing stopped early, because so many are bad. Is this the right source?"
    )
    raise TooManyBadSamplesError(
        f"{url}: {len(bad)} files cannot be used, {max_bad} may be left out (--max-bad):\n"
        f"{list_faults(bad, _SHOWN)}\n{advice}"
    )
