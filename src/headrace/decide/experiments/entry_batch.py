"""Entries of a spool as a batch for MLflow: names that it takes, steps, long params, last values.

What it would refuse is changed, and that is said.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.decide.experiments.sent_state import SentState
from headrace.decide.experiments.series_steps import step_of
from headrace.decide.experiments.spool import Entry, encodable
from headrace.decide.experiments.tracking_store import (
    LONGEST_NAME,
    LONGEST_PARAM,
    LONGEST_TAG,
    Batch,
)
from headrace.records.redaction import shown_value

SUMMARY_TAG = "headrace.summary_metrics"
"""Tags that begin so have JSON lists of the metrics of which only the last value counts."""
PARAMS_FOLDER = "params"
"""Where params that are too long are artifacts."""
_UNNAMEABLE = re.compile(r"[^\w./ :-]+")
_LONGEST_LIST = 4000  # of a tag with names: servers may take 5,000 characters


class EntryBatch:
    """A batch that entries are added to; `state` goes on with them, and counts once it is sent.

    Args:
        state: What was sent before, a copy.
        spool: Where the whole of long params is written.
        known_params: Those that MLflow has.
        report: Called with each sentence that the user is to see.

    Attributes:
        batch: The batch.
    """

    def __init__(
        self,
        state: SentState,
        spool: Path,
        known_params: dict[str, str],
        report: Callable[[str], None],
    ) -> None:
        self.batch = Batch()
        self._state, self._spool = state, spool
        self._params, self._report = known_params, report

    def add(self, entries: Iterable[Entry]) -> None:
        """Add entries; raises OSError."""
        for entry in entries:
            kind = entry["kind"]
            if kind == "artifact":
                self._state.artifacts.append((_source(entry), entry["folder"]))
            elif kind == "status":
                self._state.take_status(entry)
            elif kind == "tags":
                self.batch.tags |= {
                    nameable(name): encodable(str(value))[:LONGEST_TAG]
                    for name, value in entry["values"].items()
                }
            elif kind == "params":
                for name, value in entry["values"].items():
                    self._add_param(self._name("param", name), encodable(str(value)))
            elif kind == "summary":
                self._add_summary(entry)
            elif kind == "metrics":
                self._add_points(entry)

    def _add_summary(self, entry: Entry) -> None:
        before = set(self._state.summary)
        for given, value in entry["values"].items():
            name = self._name("summary", given)
            # MLflow takes the last by time: never two of one millisecond.
            at_ms = max(entry["at_ms"], self._state.summary.get(name, 0) + 1)
            self._state.summary[name] = at_ms
            self.batch.metrics.append((name, value, at_ms, 0))
            self._report_odd(name, value)
        if set(self._state.summary) != before:
            for number, names in enumerate(_lists(sorted(self._state.summary))):
                self.batch.tags[f"{SUMMARY_TAG}.{number}" if number else SUMMARY_TAG] = names

    def _add_points(self, entry: Entry) -> None:
        for given, value in entry["values"].items():
            name = self._name("series", given)
            step = step_of(entry, name, self._state.steps, self._state.attempts)
            self.batch.metrics.append((name, value, entry["at_ms"], step))
            self._report_odd(name, value, f" at step {step}")

    def _report_odd(self, name: str, value: float, where: str = "") -> None:
        if math.isnan(value):
            self._report(f"metric {name} is NaN{where}")
        elif math.isinf(value):
            self._report(f"metric {name} is infinite{where}: databases have 1.8e308 in its place")

    def _add_param(self, name: str, value: str) -> None:
        """Add a param: its beginning if it is too long, as its whole is an artifact."""
        if len(value) > LONGEST_PARAM:
            file = self._spool / PARAMS_FOLDER / f"{name.replace('/', '_')}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(value, encoding="utf-8")
            self._state.artifacts.append((str(file), PARAMS_FOLDER))
            self._report(
                f"param {name} has {len(value)} characters, and MLflow takes {LONGEST_PARAM}: its "
                f"whole is the artifact {PARAMS_FOLDER}/{file.name}"
            )
            value = f"{value[: LONGEST_PARAM - 1]}…"
        known = self._params.setdefault(name, value)
        if known == value:
            self.batch.params[name] = value
        else:
            shown = [shown_value(each, name) for each in (known, value)]
            self._report(
                f"param {name} stays {shown[0]}: MLflow's params cannot change, here to {shown[1]}"
            )

    def _name(self, kind: str, given: str) -> str:
        """Return MLflow's name, one for each that was given, of series, summary and params."""
        key = f"{kind}:{given}"
        name = self._state.names.get(key)
        if name is None:
            name = self._free_name(kind, given)
            self._state.names[key] = name
            if name != given:
                shown = given[:LONGEST_NAME]
                self._report(f"{kind} {shown!r} is called {name!r} in MLflow, {_WHY}")
        return name

    def _free_name(self, kind: str, given: str) -> str:
        is_param = kind == "param"
        names = self._state.names.items()
        taken = {name for key, name in names if key.startswith("param:") == is_param}
        name = nameable(given)
        others = {"series": "summary", "summary": "series"}
        if f"{others.get(kind)}:{given}" in self._state.names:
            name = f"{kind}/{name}"
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name[: LONGEST_NAME - 8]}_{number}"
        return free


def _source(entry: Entry) -> str:
    """Return where an artifact is read: its copy, or where that was sent before, the original."""
    path = entry["path"]
    return path if Path(path).exists() else entry.get("original", path)


_WHY = f"whose names are unique and have letters, digits and _-.:/ alone, {LONGEST_NAME} of them"


def nameable(given: str) -> str:
    """Return a name as MLflow takes it: its characters, and no part that a path would lose."""
    parts = _UNNAMEABLE.sub("_", given).split("/")
    kept = ["_" if part in {".", ".."} else part for part in parts if part]
    return "/".join(kept)[:LONGEST_NAME].rstrip("/") or "_"


def _lists(names: list[str]) -> list[str]:
    """Return names as JSON lists, none of them longer than a tag may be."""
    lists: list[list[str]] = [[]]
    length = 0
    for name in names:
        length += len(name) + 4
        if length > _LONGEST_LIST:
            lists.append([])
            length = len(name) + 4
        lists[-1].append(name)
    return [json.dumps(each) for each in lists]
