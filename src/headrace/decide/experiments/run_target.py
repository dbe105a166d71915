"""Where a run is tracked, and what it is called there, as a file of its spool."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.files import write_text_atomically

TARGET_FILE, SENT_FILE = "target.json", "sent.json"
"""Files of a spool: this, and how much of it MLflow has."""
DATABASE_FILE = "mlflow.db"
ARGUMENT_PREFIX, JOB_PREFIX = "argument.", "job."
"""Of params and numbers that `headrace run` knows: a script may log the same, in its own way."""
TEXT_METRIC_PREFIX = "headrace.text_metric."
"""Of tags: metrics that are texts, as Vertex AI's SDK takes them, and MLflow does not."""
ELSEWHERE = ""
"""The tracking URI of a run whose spool is on another machine."""
NO_TRACKING = "off"
"""In the place of a tracking URI, for jobs: they are not tracked."""
_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """Where a run is tracked, and what it is called there.

    Attributes:
        key: Distinguishes it from all other runs.
        started_ms: Since 1970.
        run_type: What made it, such as `headrace.run`.
        experiment_id: Of MLflow; "": the experiment's name counts.
        resumes: A run of this name is continued, if there is one.
        git_folder: Whose commit it has; "": none.
        tensorboard: Whether it is written as an event file, too.
        database: The path of its runs folder's own database from its spool on; "": it is in
            another one. By this it is found where the runs folder was moved.
    """

    key: str
    tracking_uri: str
    experiment: str
    run_name: str
    started_ms: int
    run_type: str
    experiment_id: str = ""
    resumes: bool = False
    git_folder: str = ""
    tensorboard: bool = True
    database: str = ""

    def write(self, spool: Path) -> None:
        """Write it to a spool, which is made if needed; raises OSError."""
        spool.mkdir(parents=True, exist_ok=True)
        file = spool / TARGET_FILE
        written = replace(self, database=_path_to_own_database(spool, self.tracking_uri))
        write_text_atomically(file, json.dumps(asdict(written), indent=2) + "\n")
        file.chmod(0o600)  # the tracking URI may hold a password

    @classmethod
    def read(cls, spool: Path) -> Self | None:
        """Return that of a spool; None if it has none. Raises OSError, ValueError."""
        try:
            text = (spool / TARGET_FILE).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        target = cls(**json.loads(text))
        known, own = database_file(target.tracking_uri), spool / target.database
        if target.database and known is not None and not known.exists() and own.exists():
            return replace(target, tracking_uri=f"{_SQLITE}{os.path.normpath(own.absolute())}")
        return target


def _path_to_own_database(spool: Path, uri: str) -> str:
    """Return the path from a spool to its runs folder's database; "": the URI is of another."""
    file = database_file(uri)
    if file is None or file.name != DATABASE_FILE:
        return ""
    is_above = spool.absolute().is_relative_to(file.parent)
    return os.path.relpath(file, spool.absolute()) if is_above else ""


def database_uri(runs: Path) -> str:
    """Return the tracking URI of the SQLite database of a runs folder.

    UsageError: Such a URI cannot name its path.
    """
    if "?" in str(runs.absolute()):
        raise UsageError(
            f"MLflow's database cannot be in {runs.absolute()}: what follows ? would be options of "
            "its URI. Choose another folder, or a tracking URI (MLFLOW_TRACKING_URI)."
        )
    return f"{_SQLITE}{runs.absolute() / DATABASE_FILE}"


def tracking_uri(runs: Path, given: str | None = None) -> str:
    """Return the tracking URI of runs: as given, else that of jobs, else their database.

    HEADRACE_TRACKING_URI has that of jobs, unless it is off, or MLFLOW_TRACKING_URI. A relative
    path of a database counts from the current folder, now and later.
    """
    of_jobs = env.TRACKING.get()
    if of_jobs == NO_TRACKING:
        of_jobs = None
    uri = given or of_jobs or env.MLFLOW_TRACKING_URI.get() or database_uri(runs)
    file = database_file(uri)
    return uri if file is None or str(file) == ":memory:" else f"{_SQLITE}{file.absolute()}"


def database_file(uri: str) -> Path | None:
    """Return the file of a SQLite database; None for other stores."""
    if not uri.startswith(_SQLITE):
        return None
    return Path(uri.removeprefix(_SQLITE).partition("?")[0])  # options follow


def shown_uri(uri: str) -> str:
    """Return a tracking URI without user, password and query."""
    scheme, separator, rest = uri.partition("://")
    rest = rest.partition("?")[0]
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
