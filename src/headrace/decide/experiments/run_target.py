"""Where a run is tracked, and what it is called there, as a file of its spool."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from headrace.core import env
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.files import sync_folder, write_text_atomically

TARGET_FILE, SENT_FILE = "target.json", "sent.json"
"""Files of a spool: this, and how much of it MLflow has."""
DATABASE_FILE = "mlflow.db"
ARGUMENT_PREFIX, JOB_PREFIX = "argument.", "job."
"""Of params and numbers that `headrace run` knows: a script may log the same, in its own way."""
TEXT_METRIC_PREFIX = "headrace.text_metric."
"""Of tags: metrics that are texts, as Vertex AI's SDK takes them, and MLflow does not."""
ELSEWHERE = ""
"""The tracking URI of a run whose spool is on another machine."""
JOB_RUN_TYPE = "headrace.run"
"""Of the runs of jobs."""
NO_TRACKING = "off"
"""In the place of a tracking URI, for jobs: they are not tracked."""
_SQLITE, _FILE = "sqlite:///", "file:"
_PROFILES = {"databricks", "databricks-uc", "uc"}
"""Tracking URIs of MLflow's that have no scheme, and are no folder."""


class RunTargetError(HeadraceError):
    """The file that says where a run is tracked cannot be read; the message names it."""


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
        spool: The path of the spool that it was written to; "": an older version wrote it.
        inode: That folder's, which a move on its file system leaves as it is, and a copy does not.
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
    spool: str = ""
    inode: int = 0

    def write(self, spool: Path) -> None:
        """Write it to a spool, which is made if needed; raises OSError."""
        spool.mkdir(parents=True, exist_ok=True)
        sync_folder(spool.parent)
        file = spool / TARGET_FILE
        written = replace(
            self, database=_path_to_own_database(spool, self.tracking_uri),
            spool=str(spool.absolute()), inode=spool.stat().st_ino,
        )  # fmt: skip
        write_text_atomically(file, json.dumps(asdict(written), indent=2) + "\n", durable=True)
        file.chmod(0o600)  # the tracking URI may hold a password

    @classmethod
    def read(cls, spool: Path) -> Self | None:
        """Return that of a spool; None if it has none. Raises RunTargetError."""
        file = spool / TARGET_FILE
        try:
            target = cls(**json.loads(file.read_text(encoding="utf-8")))
            known, own = database_file(target.tracking_uri), spool / target.database
            if target.database and known is not None and not known.exists() and own.exists():
                return replace(target, tracking_uri=f"{_SQLITE}{os.path.normpath(own.absolute())}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:  # damaged, or a newer one
            raise RunTargetError(
                f"{file}, which says where the run is tracked, cannot be read: {error}. If a newer "
                "Headrace wrote it, use that; otherwise move it away, and the next attempt writes "
                "another."
            ) from error
        return target

    @classmethod
    def readable(cls, spool: Path) -> Self | None:
        """Return that of a spool; None also where it cannot be read, which is said elsewhere."""
        try:
            return cls.read(spool)
        except RunTargetError:
            return None

    def has_original(self, spool: Path) -> bool:
        """Whether a spool is a copy of that of another folder, which still is this run's."""
        try:
            if not self.spool or Path(self.spool).samefile(spool):
                return False
        except OSError:  # it was moved here, or is on another machine
            return False
        original = RunTarget.readable(Path(self.spool))
        return original is not None and original.key == self.key

    def is_of_another_run(self, spool: Path) -> bool:
        """Whether an attempt that begins in a spool's folder is another run's: in that of a copy.

        Where the original cannot be seen, such as on another machine, a copy under another name is
        one, and one under the same name is the run that was moved. Raises OSError.
        """
        is_renamed = Path(self.spool).parent.name != spool.absolute().parent.name
        has_other_inode = self.inode not in {0, spool.stat().st_ino}
        return self.has_original(spool) or (is_renamed and has_other_inode)

    def lies_in(self, spool: Path) -> bool:
        """Whether it was written to a spool, and is where it was then; raises OSError."""
        return (self.spool, self.inode) == (str(spool.absolute()), spool.stat().st_ino)


def target_to_go_on(spool: Path) -> RunTarget | None:
    """Return the target of the run that an attempt goes on with; None: it begins one.

    In the folder of a copy that is another run, and what the original has logged is put aside.
    Raises OSError, RunTargetError.
    """
    target = RunTarget.read(spool)
    if target is None:
        return None
    if target.is_of_another_run(spool):
        spool.rename(spool.with_name(f"{spool.name}-of-the-original-{time.time_ns()}"))
        return None
    if not target.lies_in(spool):  # so that copies of it are known as such from now on
        target.write(spool)
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
    path, of a database or a folder, counts from the current folder, now and later.
    """
    of_jobs = env.TRACKING.get()
    if of_jobs == NO_TRACKING:
        of_jobs = None
    return _absolute(given or of_jobs or env.MLFLOW_TRACKING_URI.get() or database_uri(runs))


def _absolute(uri: str) -> str:
    """Return a tracking URI with an absolute path, if it is of a database or a folder here."""
    file = database_file(uri)
    if file is not None:
        return uri if str(file) == ":memory:" else f"{_SQLITE}{file.absolute()}"
    if uri.startswith(_FILE):
        path = Path(unquote(uri.removeprefix(_FILE)))
        return uri if path.is_absolute() else path.absolute().as_uri()
    is_folder = ":" not in uri.partition("/")[0] and uri not in _PROFILES
    return str(Path(uri).absolute()) if is_folder else uri


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
