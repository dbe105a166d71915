"""What the records lack is told with the verdict."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.observe.doctor.diagnose import diagnose
from run_tables import Run, play

EVENTS: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([], []),
    ([{"kind": "trace", "text": "rank-0.json.gz", "value": 10.0}], []),
    (
        [{"kind": "dropped-records", "text": "a", "value": 1000.0},
         {"kind": "dropped-records", "text": "b", "value": 234.0}],
        ["1,234 records were lost: they came faster than they could be collected."],
    ),
    (
        [{"kind": "probe-fault", "text": "Journal: KeyError: 1", "value": 1.0}],
        ["Recording failed once, and left that out; first: Journal: KeyError: 1."],
    ),
    (
        [{"kind": "switched", "text": "off"}, {"kind": "switched", "text": "on"},
         {"kind": "recording-stopped", "text": "after 100 faults"}],
        ["A process recorded no more after a hundred faults of the probe.",
         "Recording was switched off once: what ran then is not in the figures."],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("events", "told"), EVENTS)
@pytest.mark.parametrize("rules", ["headrace", "sagemaker"])
def test_each_kind_of_gap_is_one_sentence(
    events: list[dict[str, Any]], told: list[str], rules: Any
):
    tables = play(Run(workers=2, service_ms=10))
    for event in events:
        tables.add("events", **event)
    diagnosis = diagnose(tables, rules)
    assert list(diagnosis.gaps) == told
    assert diagnosis.to_json()["gaps"] == told
