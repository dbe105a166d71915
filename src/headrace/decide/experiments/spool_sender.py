"""Sends what a run's spool holds to MLflow, once, in order, and remembers how far it came.

What the store refuses is reported and left out, so that the rest arrives. What cannot be sent now
stays in the spool. After kill -9 some may be sent again: MLflow keeps one of equal points.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError
from headrace.core.file_lock import lock_within, open_lock_file
from headrace.decide.experiments.artifact_copies import discard_copy
from headrace.decide.experiments.entry_batch import EntryBatch
from headrace.decide.experiments.run_target import TARGET_FILE, RunTarget
from headrace.decide.experiments.sent_state import SentState
from headrace.decide.experiments.spool import RUNNING, Entry, read_spool
from headrace.decide.experiments.tracking_store import (
    Batch,
    StoreRefusalError,
    StoreUnavailableError,
    TrackingStore,
)

KEY_TAG = "headrace.key"
RUN_TYPE_TAG = "headrace.run_type"
_LOCK_FILE, _LOCK_S = ".lock", 5.0  # one that was killed leaves it at once


class SpoolInUseError(HeadraceError):
    """Another process sends the spool, such as that of its job."""


class SpoolSender:
    """Sends the spool of one run.

    Args:
        spool: Its folder, with the run's target in it.
        lock_s: How long another process that sends it is waited for.

    Raises SpoolInUseError; RunTargetError, OSError: the spool cannot be read.
    """

    def __init__(self, spool: Path, *, lock_s: float = _LOCK_S) -> None:
        self._spool = spool
        self._lock = _locked(spool, lock_s)
        try:
            self.target = _target(spool)
        except BaseException:
            self.close()
            raise
        self._sent = SentState.read(spool)
        self._store: TrackingStore | None = None
        self._params: dict[str, str] | None = None  # that MLflow has
        self._reported: set[str] = set()

    @property
    def run_id(self) -> str:
        """The run in MLflow; "" before it has one."""
        return self._sent.run_id

    @property
    def has_ended(self) -> bool:
        """Whether the spool says how the run ended."""
        return self._sent.has_ended

    @property
    def is_complete(self) -> bool:
        """Whether MLflow has all of the spool."""
        return self._sent.is_complete(self._spool)

    def send(self) -> None:
        """Send what is new; raises StoreUnavailableError, OSError.

        Artifacts come last, as they may go to another store, and one that fails is tried again.
        """
        store = self._opened_store()
        if not self._sent.run_id:
            self._begin_run(store)
        for entries, offsets in read_spool(self._spool, self._sent.offsets):
            self._send_entries(store, entries, offsets)
        if self._sent.status != self._sent.sent_status:
            self._send_status(store)
        self._log_artifacts(store)

    def entries_of_others(self) -> Iterator[Entry]:
        """Yield what MLflow's run has that is not in the spool, such as of a script's own calls.

        Raises StoreUnavailableError.
        """
        store, names = self._opened_store(), self._sent.names.items()
        own = {name for key, name in names if not key.startswith("param:")}
        own_params = {name for key, name in names if key.startswith("param:")}
        run = store.run(self._sent.run_id)
        for name in sorted(run.data.metrics.keys() - own):
            for step, at_ms, value in store.history(self._sent.run_id, name):
                yield {"kind": "metrics", "at_ms": at_ms, "values": {name: value}, "step": step}
        params = {name: run.data.params[name] for name in run.data.params.keys() - own_params}
        yield {"kind": "params", "at_ms": self._sent.status_ms, "values": params}

    def close(self) -> None:
        """Let another process send the spool."""
        os.close(self._lock)

    def end(self, status: str, at_ms: int) -> None:
        """Set the status of a run that ended without one; raises as `send` does."""
        self._sent.status, self._sent.status_ms = status, at_ms
        self._send_status(self._opened_store())

    def _opened_store(self) -> TrackingStore:
        if self._store is None:
            store = TrackingStore(self.target.tracking_uri, has_process=True)
            if self._sent.run_id and not store.has_run(self._sent.run_id):
                self._forget_run()
            self._store = store
        return self._store

    def _forget_run(self) -> None:
        """Send all again, to another run: somebody has deleted the run in MLflow."""
        print_status(f"MLflow's run {self._sent.run_id} was deleted, and another one is begun")
        self._sent, self._params = SentState(), None

    def _begin_run(self, store: TrackingStore) -> None:
        target = self.target
        experiment_id = target.experiment_id or store.experiment_id(target.experiment)
        before = store.run_tagged(experiment_id, KEY_TAG, target.key)
        if before is None and target.resumes:
            before = store.run_named(experiment_id, target.run_name)
        if before is None:
            tags = {KEY_TAG: target.key, RUN_TYPE_TAG: target.run_type}
            before = store.create_run(experiment_id, target.run_name, target.started_ms, tags)
        else:
            store.set_status(before.info.run_id, RUNNING)
        self._sent.run_id = str(before.info.run_id)
        self._sent.write(self._spool)

    def _send_entries(
        self, store: TrackingStore, entries: list[Entry], offsets: dict[str, int]
    ) -> None:
        state = self._sent.copy()  # what is not sent does not count
        if self._params is None:
            self._params = dict(store.run(state.run_id).data.params)
        params = dict(self._params)
        made = EntryBatch(state, self._spool, params, self._report)
        made.add(entries)
        self._log(store, made.batch)
        state.offsets = offsets
        state.write(self._spool)
        self._sent, self._params = state, params

    def _log(self, store: TrackingStore, batch: Batch) -> None:
        run_id = self._sent.run_id
        try:
            store.log(run_id, batch)
        except StoreRefusalError:
            if not store.has_run(run_id):
                self._forget_run()
                raise StoreUnavailableError("the run was deleted in MLflow") from None
            for single in _singles(batch):  # one of them is refused: the others are to arrive
                try:
                    store.log(run_id, single)
                except StoreRefusalError as error:
                    self._report(str(error))

    def _log_artifacts(self, store: TrackingStore) -> None:
        """Log artifacts; those of which the store cannot have one now are tried again later."""
        fault: StoreUnavailableError | None = None
        left: list[tuple[str, str]] = []
        done: list[Path] = []
        for path, folder in self._sent.artifacts:
            if not Path(path).exists():
                self._report(f"artifact {path} is no longer there, and is not logged")
                continue
            try:
                store.log_artifact(self._sent.run_id, Path(path), folder)
            except StoreUnavailableError as error:
                left.append((path, folder))
                fault = StoreUnavailableError(f"artifact {path}: {error}")
                continue
            except StoreRefusalError as error:
                self._report(f"artifact {path}: {error}")
            done.append(Path(path))
        if left != self._sent.artifacts:
            self._sent.artifacts = left
            self._sent.write(self._spool)
        for each in done:  # only now: after kill -9 they are logged again
            discard_copy(self._spool, each)
        if fault is not None:
            raise fault

    def _send_status(self, store: TrackingStore) -> None:
        status = self._sent.status
        ended_ms = None if status == RUNNING else self._sent.status_ms
        store.set_status(self._sent.run_id, status, ended_ms)
        self._sent.sent_status = status
        self._sent.write(self._spool)

    def _report(self, line: str) -> None:
        """Print a line, once."""
        about = line.partition(" at step ")[0]
        if about not in self._reported:
            self._reported.add(about)
            print_status(line)


def _locked(spool: Path, wait_s: float) -> int:
    descriptor = open_lock_file(spool / _LOCK_FILE)
    if not lock_within(descriptor, wait_s, required=False):
        os.close(descriptor)
        raise SpoolInUseError(f"{spool} is being sent by another process.")
    return descriptor


def _target(spool: Path) -> RunTarget:
    target = RunTarget.read(spool)
    if target is None:
        raise FileNotFoundError(f"{spool / TARGET_FILE} is missing")
    return target


def _singles(batch: Batch) -> list[Batch]:
    """Return the items of a batch in batches of one."""
    found = [Batch(params={name: value}) for name, value in batch.params.items()]
    found += [Batch(tags={name: value}) for name, value in batch.tags.items()]
    return found + [Batch(metrics=[metric]) for metric in batch.metrics]
