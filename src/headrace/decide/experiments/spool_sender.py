"""Sends what a run's spool holds to MLflow, once, in order, and remembers how far it came.

What the store refuses is reported and left out, so that the rest arrives. What cannot be sent now
stays in the spool. After kill -9 some may be sent again: MLflow keeps one of equal points.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError
from headrace.core.file_lock import lock_within, open_lock_file
from headrace.core.files import write_text_atomically
from headrace.decide.experiments.git_state import git_tags
from headrace.decide.experiments.run_target import SENT_FILE, TARGET_FILE, RunTarget
from headrace.decide.experiments.spool import Entry, read_spool
from headrace.decide.experiments.tracking_store import (
    LONGEST_NAME,
    LONGEST_PARAM,
    Batch,
    StoreRefusalError,
    TrackingStore,
)

_LOCK_FILE, _LOCK_S = ".lock", 5.0  # one that was killed leaves it at once
KEY_TAG = "headrace.key"
RUN_TYPE_TAG = "headrace.run_type"
SUMMARY_TAG = "headrace.summary_metrics"
"""A JSON list of the metrics of which only the last value counts; others are time series."""
_PARAMS_FOLDER = "params"
_UNNAMEABLE = re.compile(r"[^\w./ :-]+")
_RUNNING = "RUNNING"


class SpoolInUseError(HeadraceError):
    """Another process sends the spool, such as that of its job."""


@dataclass(slots=True)
class _Sent:
    """What of a spool MLflow has.

    Attributes:
        run_id: MLflow's; "": it has no run yet.
        offsets: By file of the spool, the bytes that were sent.
        steps: By metric, its last step.
        summary: By metric of which only the last value counts, that value's time in ms.
        status: The run's in MLflow.
    """

    run_id: str = ""
    offsets: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    summary: dict[str, int] = field(default_factory=dict)
    status: str = _RUNNING


class SpoolSender:
    """Sends the spool of one run.

    Args:
        spool: Its folder, with the run's target in it.
        lock_s: How long another process that sends it is waited for.

    Raises SpoolInUseError; OSError, ValueError: the spool cannot be read.
    """

    def __init__(self, spool: Path, *, lock_s: float = _LOCK_S) -> None:
        self._spool = spool
        self._lock = open_lock_file(spool / _LOCK_FILE)  # until this process ends
        if not lock_within(self._lock, lock_s, required=False):
            self.close()
            raise SpoolInUseError(f"{spool} is being sent by another process.")
        target = RunTarget.read(spool)
        if target is None:
            raise FileNotFoundError(f"{spool / TARGET_FILE} is missing")
        self.target = target
        self._sent = _Sent()
        file = spool / SENT_FILE
        if file.exists():
            self._sent = _Sent(**json.loads(file.read_text(encoding="utf-8")))
        self._store: TrackingStore | None = None
        self._params: dict[str, str] | None = None  # that MLflow has
        self._reported: set[str] = set()

    @property
    def run_id(self) -> str:
        """The run in MLflow; "" before it has one."""
        return self._sent.run_id

    @property
    def has_ended(self) -> bool:
        """Whether MLflow knows how the run ended."""
        return self._sent.status != _RUNNING

    @property
    def unsent_bytes(self) -> int:
        """How much of the spool MLflow does not have."""
        sizes = {path.name: path.stat().st_size for path in self._spool.glob("*.jsonl")}
        return sum(size - self._sent.offsets.get(name, 0) for name, size in sizes.items())

    def send(self) -> None:
        """Send what is new; raises StoreUnavailableError, StoreRefusalError, OSError."""
        store = self._opened_store()
        if not self._sent.run_id:
            self._sent.run_id = self._begun_run(store)
            self._save()
        for entries, offsets in read_spool(self._spool, self._sent.offsets):
            self._send_entries(store, entries)
            self._sent.offsets = offsets
            self._save()

    def close(self) -> None:
        """Let another process send the spool."""
        os.close(self._lock)

    def end(self, status: str, at_ms: int) -> None:
        """Tell MLflow that a run has ended which did not say so; raises as `send` does."""
        self._set_status(self._opened_store(), status, at_ms)
        self._save()

    def _opened_store(self) -> TrackingStore:
        if self._store is None:
            self._store = TrackingStore(self.target.tracking_uri)
        return self._store

    def _begun_run(self, store: TrackingStore) -> str:
        target = self.target
        experiment_id = store.experiment_id(target.experiment)
        before = store.run_tagged(experiment_id, KEY_TAG, target.key)
        if before is None and target.resumes:
            before = store.run_named(experiment_id, target.run_name)
        if before is not None:
            store.set_status(before.info.run_id, _RUNNING)
            return str(before.info.run_id)
        tags = {KEY_TAG: target.key, RUN_TYPE_TAG: target.run_type}
        tags |= git_tags(target.git_folder) if target.git_folder else {}
        run = store.create_run(experiment_id, target.run_name, target.started_ms, tags)
        return str(run.info.run_id)

    def _send_entries(self, store: TrackingStore, entries: list[Entry]) -> None:
        batch, artifacts = Batch(), []
        ended: Entry | None = None
        for entry in entries:
            kind = entry["kind"]
            if kind == "status":
                ended = entry
                continue
            ended = None  # a run that goes on after its end has not ended
            if kind == "artifact":
                artifacts.append((Path(entry["path"]), entry["folder"]))
            else:
                self._add(store, batch, entry, artifacts)
        if ended is None and self.has_ended:
            self._set_status(store, _RUNNING, None)
        self._log(store, batch)
        for path, folder in artifacts:
            self._log_artifact(store, path, folder)
        if ended is not None:
            self._set_status(store, ended["status"], ended["at_ms"])

    def _add(
        self, store: TrackingStore, batch: Batch, entry: Entry, artifacts: list[tuple[Path, str]]
    ) -> None:
        """Add an entry to a batch."""
        at_ms = entry["at_ms"]
        for given, value in entry["values"].items():
            name = self._valid_name(given)
            if entry["kind"] == "tags":
                batch.tags[name] = str(value)
            elif entry["kind"] == "params":
                self._add_param(store, batch, name, str(value), artifacts)
            elif entry["kind"] == "summary":
                # MLflow takes the last by time: never two of one millisecond.
                at_ms = max(at_ms, self._sent.summary.get(name, 0) + 1)
                if name not in self._sent.summary:
                    batch.tags[SUMMARY_TAG] = json.dumps(sorted([*self._sent.summary, name]))
                self._sent.summary[name] = at_ms
                batch.metrics.append((name, value, at_ms, 0))
            else:
                step = entry["step"]
                step = self._sent.steps.get(name, -1) + 1 if step is None else step
                self._sent.steps[name] = max(step, self._sent.steps.get(name, 0))
                batch.metrics.append((name, value, at_ms, step))
                if value != value:  # noqa: PLR0124 - NaN is not equal to itself
                    self._report(f"metric {name} is NaN at step {step}")

    def _add_param(
        self, store: TrackingStore, batch: Batch, name: str, value: str,
        artifacts: list[tuple[Path, str]],
    ) -> None:  # fmt: skip
        """Add a param to a batch: its beginning if it is too long, as its whole is an artifact."""
        if self._params is None:
            self._params = dict(store.run(self._sent.run_id).data.params)
        if len(value) > LONGEST_PARAM:
            file = self._spool / _PARAMS_FOLDER / f"{name.replace('/', '_')}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(value, encoding="utf-8")
            artifacts.append((file, _PARAMS_FOLDER))
            self._report(
                f"param {name} has {len(value)} characters, and MLflow takes {LONGEST_PARAM}: its "
                f"whole is the artifact {_PARAMS_FOLDER}/{file.name}"
            )
            value = f"{value[: LONGEST_PARAM - 1]}…"
        known = self._params.setdefault(name, value)
        if known == value:
            batch.params[name] = value
        else:
            self._report(
                f"param {name} stays {known!r}: MLflow's params cannot change, here to {value!r}"
            )

    def _log(self, store: TrackingStore, batch: Batch) -> None:
        try:
            store.log(self._sent.run_id, batch)
        except StoreRefusalError:  # of one of them: the others are to arrive
            for single in _singles(batch):
                try:
                    store.log(self._sent.run_id, single)
                except StoreRefusalError as error:
                    self._report(str(error))

    def _log_artifact(self, store: TrackingStore, path: Path, folder: str) -> None:
        if not path.exists():
            self._report(f"artifact {path} is no longer there, and is not logged")
            return
        try:
            store.log_artifact(self._sent.run_id, path, folder)
        except StoreRefusalError as error:
            self._report(f"artifact {path}: {error}")

    def _set_status(self, store: TrackingStore, status: str, at_ms: int | None) -> None:
        store.set_status(self._sent.run_id, status, at_ms)
        self._sent.status = status

    def _valid_name(self, given: str) -> str:
        name = _UNNAMEABLE.sub("_", given)[:LONGEST_NAME].strip("/") or "_"
        if name != given:
            self._report(f"{given[:LONGEST_NAME]!r} is logged as {name!r}: MLflow's names have "
                         f"letters, digits and _-.:/ alone, {LONGEST_NAME} of them")  # fmt: skip
        return name

    def _report(self, line: str) -> None:
        """Print a line, once."""
        about = line.partition(" at step ")[0]
        if about not in self._reported:
            self._reported.add(about)
            print_status(line)

    def _save(self) -> None:
        write_text_atomically(self._spool / SENT_FILE, json.dumps(asdict(self._sent)) + "\n")


def _singles(batch: Batch) -> list[Batch]:
    """Return the items of a batch in batches of one."""
    found = [Batch(params={name: value}) for name, value in batch.params.items()]
    found += [Batch(tags={name: value}) for name, value in batch.tags.items()]
    return found + [Batch(metrics=[metric]) for metric in batch.metrics]
