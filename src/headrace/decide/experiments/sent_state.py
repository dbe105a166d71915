"""How much of a run's spool MLflow has, as a file beside it."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from headrace.core.console import print_status
from headrace.core.files import write_text_atomically
from headrace.decide.experiments.run_target import SENT_FILE
from headrace.decide.experiments.spool import RUNNING


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

    def write(self, spool: Path) -> None:
        """Write it to a spool; raises OSError."""
        write_text_atomically(spool / SENT_FILE, json.dumps(asdict(self)) + "\n")

    def copy(self) -> Self:
        """Return a copy, which shares nothing."""
        return deepcopy(self)
