"""Where a run is tracked, and what it is called there, as a file of its spool."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from headrace.core import env
from headrace.core.files import write_text_atomically

TARGET_FILE, SENT_FILE = "target.json", "sent.json"
"""Files of a spool: this, and how much of it MLflow has."""
DATABASE_FILE = "mlflow.db"
_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """Where a run is tracked, and what it is called there.

    Attributes:
        key: Distinguishes it from all other runs.
        started_ms: Since 1970.
        run_type: What made it, such as `headrace.run`.
        resumes: A run of this name is continued, if there is one.
        git_folder: Whose commit it has; "": none.
    """

    key: str
    tracking_uri: str
    experiment: str
    run_name: str
    started_ms: int
    run_type: str
    resumes: bool = False
    git_folder: str = ""

    def write(self, spool: Path) -> None:
        """Write it to a spool, which is made if needed; raises OSError."""
        spool.mkdir(parents=True, exist_ok=True)
        write_text_atomically(spool / TARGET_FILE, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, spool: Path) -> Self | None:
        """Return that of a spool; None if it has none. Raises OSError, ValueError."""
        try:
            text = (spool / TARGET_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return cls(**json.loads(text))


def database_uri(runs: Path) -> str:
    """Return the tracking URI of the SQLite database of a runs folder."""
    return f"{_SQLITE}{runs.absolute() / DATABASE_FILE}"


def tracking_uri(runs: Path, given: str | None = None) -> str:
    """Return the tracking URI of runs: as given, else MLFLOW_TRACKING_URI, else their database."""
    return given or env.MLFLOW_TRACKING_URI.get() or database_uri(runs)


def database_file(uri: str) -> Path | None:
    """Return the file of a SQLite database; None for other stores."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None
