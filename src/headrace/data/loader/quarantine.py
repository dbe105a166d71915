"""The quarantine of bad samples: records, count over all ranks, limit at which all ranks stop."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.errors import TooManyBadSamplesError
from headrace.core.world import World
from headrace.data.loader.dataset_protocol import NativeDataset

_LOG = logging.getLogger("headrace")
FORGIVEN = 2  # a rate is judged from the third bad sample on
_WARNED: set[str] = set()
"""Datasets whose bad samples this process has warned of: once, not in each epoch."""
_UNWRITTEN: set[Path] = set()
"""Quarantine files of which this process has warned that they cannot be written."""


def quarantine_file() -> Path:
    """Return the quarantine file: in the run folder, else in the working folder."""
    return Path(env.RUN_DIR.get(".") or ".") / "quarantine.jsonl"


def write_records(records: Sequence[Mapping[str, Any]]) -> Path:
    """Append quarantine records, one JSON object a line; return the file.

    Where that fails it warns once: the samples count nevertheless.
    """
    path = quarantine_file()
    lines = "".join(json.dumps(dict(record), sort_keys=True) + "\n" for record in records)
    try:
        _append(path, lines.encode())
    except OSError as error:
        place = path.absolute()
        if place not in _UNWRITTEN:
            _UNWRITTEN.add(place)
            _LOG.warning(
                "bad samples cannot be written down in %s (%s): they are replaced and counted, but "
                "not listed",
                path, error.strerror or error,
            )  # fmt: skip
    return path


def _append(path: Path, lines: bytes) -> None:
    """Append to a file, in one write for concurrent appenders."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, lines)
    finally:
        os.close(descriptor)


def too_many(bad: int, seen: int, max_bad_rate: float) -> bool:
    """Return whether `bad` samples among `seen` exceed the allowed rate."""
    return bad > FORGIVEN and bad > max_bad_rate * max(seen, 1)


_NAMED: Counter[str] = Counter()


def budget_name(kind: str, world: World, dataset: Any) -> str:
    """Return a name for a loader's count of bad samples, or an iteration's: the same on every rank.

    Ranks make the loaders of one dataset in the same order. But one rank may have other loaders
    besides, as rank 0 often validates alone: so only loaders of its kind count.
    """
    fingerprint = dataset.fingerprint if isinstance(dataset, NativeDataset) else ""
    alike = f"{kind}/{world.size}/{fingerprint}"
    _NAMED[alike] += 1
    return f"{alike}/{_NAMED[alike]}"


class BadSampleBudget:
    """The count of bad samples over all ranks, and the batch at which all of them stop.

    The rank that finds the budget exceeded, at batch g, sets the stop at batch g + 1 for all.
    Ranks that exchange gradients are never more than one batch apart, so all of them see the stop
    before they receive that batch, and raise the same error there: none waits for another.

    `name`, a `budget_name`, distinguishes this loader's count. Only a `NativeDataset` reports bad
    samples.
    """

    def __init__(self, name: str, world: World, dataset: Any) -> None:
        self._name = name
        self._world = world
        self._is_counted = isinstance(dataset, NativeDataset)
        self._max_bad_rate = dataset.max_bad_rate if isinstance(dataset, NativeDataset) else 0.0
        self._bad_here = 0
        self._stop: tuple[int, str] | None = None

    def note(self, records: Sequence[Mapping[str, Any]], batch: int, seen: int) -> None:
        """Write the records of bad samples of `batch`; all ranks have received `seen` samples."""
        path = write_records([{**record, "rank": self._world.rank} for record in records])
        first = records[0]
        if str(first["dataset"]) not in _WARNED:
            _WARNED.add(str(first["dataset"]))
            _LOG.warning(
                "rank %d: sample %s of %s is bad (%s) and was replaced by %s; all are listed in %s",
                self._world.rank, first["key"], first["shard"], first["error"],
                first["replacement_key"], path,
            )  # fmt: skip
        self._bad_here += len(records)
        bad = self._add(len(records))
        if too_many(bad, seen, self._max_bad_rate):
            self._set_stop(
                batch + 1,
                f"{bad} of {seen} samples read so far are bad, more than the allowed "
                f"{self._max_bad_rate:.2%}. They are listed in {path}, the last being "
                f"{records[-1]['key']} of {records[-1]['shard']}. Repair or repack the dataset "
                f"(`headrace data lint` names every fault), or raise max_bad_rate.",
            )

    def check(self, batch: int) -> None:
        """Raise TooManyBadSamplesError if some rank has set a stop at or before `batch`."""
        stop = self._agreed_stop() if self._is_counted else None
        if stop is not None and batch >= stop[0]:
            raise TooManyBadSamplesError(stop[1])

    def _store(self) -> Any:
        """Return the process group's key-value store, or None outside of one."""
        dist = sys.modules.get("torch.distributed")
        if self._world.size == 1 or dist is None or not dist.is_initialized():
            return None
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way
        return dist.PrefixStore(f"headrace/bad/{self._name}", store)

    def _add(self, count: int) -> int:
        store = self._store()
        return self._bad_here if store is None else int(store.add("count", count))

    def _set_stop(self, batch: int, text: str) -> None:
        store = self._store()
        if store is None:
            self._stop = self._stop or (batch, text)
        else:
            store.compare_set("stop", "", json.dumps([batch, text]))  # the first rank's stop holds

    def _agreed_stop(self) -> tuple[int, str] | None:
        store = self._store()
        if store is None or self._stop is not None:
            return self._stop
        try:
            stop = store.get("stop") if store.check(["stop"]) else None
        except sys.modules["torch.distributed"].DistNetworkError:
            return None  # the rank that hosts the store has ended: nothing left to agree on
        if stop is not None:
            batch, text = json.loads(stop)
            self._stop = (batch, text)
        return self._stop
