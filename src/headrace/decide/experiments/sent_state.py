"""How much of a run's spool MLflow has, as a file beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from headrace.core.console import print_status
from headrace.core.files import write_text_atomically
from headrace.decide.experiments.run_target import SENT_FILE
from headrace.decide.experiments.spool import RUNNING, Entry, spool_files

_POLL_S = 0.1


@dataclass(slots=True)
class SentState:
    """What of a spool MLflow has.

    Attributes:
        run_id: MLflow's; "": it has no run yet.
        offsets: By file of the spool, the bytes that were sent.
        names: MLflow's names, by `series:NAME`, `summary:NAME` and `param:NAME` as they were given.
        steps: By MLflow's name of a series, its last step.
        attempts: By the same, of series whose steps begin anew with each attempt: the last attempt,
            and the step at which it began.
        summary: By MLflow's name of a metric of which only the last value counts, its time in ms.
        artifacts: Paths and folders of those that could not be logged yet.
        status: The run's, as the spool has it last.
        status_ms: Since when, in ms since 1970.
        status_attempt: Which attempt of the job it is of; 0: it says of none.
        sent_status: That of the run in MLflow.
    """

    run_id: str = ""
    offsets: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, tuple[int, int]] = field(default_factory=dict)
    summary: dict[str, int] = field(default_factory=dict)
    artifacts: list[tuple[str, str]] = field(default_factory=list)
    status: str = RUNNING
    status_ms: int = 0
    status_attempt: int = 0
    sent_status: str = RUNNING

    @classmethod
    def read(cls, spool: Path) -> Self:
        """Return that of a spool; one where nothing was sent if there is none, or a broken one.

        All is sent again then, and MLflow keeps one of equal points.
        """
        try:
            fields = json.loads((spool / SENT_FILE).read_text(encoding="utf-8"))
            return cls(**fields)
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError, OSError) as error:
            print_status(f"{spool / SENT_FILE} cannot be read, and all is sent again: {error}")
            return cls()

    @property
    def has_ended(self) -> bool:
        """Whether the spool says how the run ended."""
        return self.status != RUNNING

    def is_complete(self, spool: Path) -> bool:
        """Return whether MLflow has all of a spool; raises OSError."""
        is_status_sent = self.sent_status == self.status
        return self.has_all_of(_sizes(spool)) and is_status_sent and not self.artifacts

    def has_all_of(self, sizes: Mapping[str, int]) -> bool:
        """Return whether MLflow has what files of the spool held when they had these sizes."""
        is_sent = all(size <= self.offsets.get(name, 0) for name, size in sizes.items())
        return bool(self.run_id) and is_sent

    def take_status(self, entry: Entry) -> None:
        """Take a status: of several files the last one counts, and is sent after all else.

        Attempts are in their order, though the clock may have been set back between them.
        """
        order = entry.get("attempt", 0), entry["at_ms"]
        if order >= (self.status_attempt, self.status_ms):
            self.status_attempt, self.status_ms = order
            self.status = entry["status"]

    def write(self, spool: Path) -> None:
        """Write it to a spool; raises OSError."""
        write_text_atomically(spool / SENT_FILE, json.dumps(asdict(self)) + "\n")

    def copy(self) -> Self:
        """Return a copy, which shares nothing."""
        return deepcopy(self)


def wait_until_sent(spool: Path, patience_s: float) -> bool:
    """Wait until MLflow has what a spool holds now, by whichever process; return whether it has."""
    sizes, deadline = _sizes(spool), time.monotonic() + patience_s
    while not SentState.read(spool).has_all_of(sizes):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _sizes(spool: Path) -> dict[str, int]:
    """Return the sizes of a spool's files, by name; raises OSError."""
    return {path.name: path.stat().st_size for path in spool_files(spool)}
