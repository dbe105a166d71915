"""The diagnosis of a run from its records, and what the records lack."""

from __future__ import annotations

from dataclasses import replace

from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Diagnosis, RuleSet
from headrace.observe.doctor.rules import RULES
from headrace.observe.doctor.verdict import make_verdict, rank_findings
from headrace.observe.whatif.tables import CachedTables, Columns, Tables, row_count


def missing_data(events: Columns) -> tuple[str, ...]:
    """Return a sentence for each kind of data that was not recorded, or fault of the recording."""
    if row_count(events) == 0:
        return ()
    by_kind: dict[str, list[tuple[str, float]]] = {kind: [] for kind in _SENTENCES}
    for kind, text, value in zip(events["kind"], events["text"], events["value"], strict=True):
        if kind in by_kind and (kind, text) != ("switched", "on"):
            by_kind[kind].append((str(text), float(value)))
    return tuple(_SENTENCES[kind](rows) for kind, rows in by_kind.items() if rows)


def _dropped(rows: list[tuple[str, float]]) -> str:
    lost = sum(count for _, count in rows)
    return f"{lost:,.0f} records were lost: they came faster than they could be collected."


def _faults(rows: list[tuple[str, float]]) -> str:
    times = "once" if len(rows) == 1 else f"{len(rows)} times"
    return f"Recording failed {times}, and left that out; first: {rows[0][0]}."


def _stopped(rows: list[tuple[str, float]]) -> str:
    who = "A process" if len(rows) == 1 else f"{len(rows)} processes"
    return f"{who} recorded no more after a hundred faults of the probe."


def _device_steps(rows: list[tuple[str, float]]) -> str:
    lost = sum(count for _, count in rows)
    return f"{lost:,.0f} steps have no row by the accelerator's clock: the others stand for them."


def _switched(rows: list[tuple[str, float]]) -> str:
    times = "once" if len(rows) == 1 else f"{len(rows)} times"
    return f"Recording was switched off {times}: what ran then is not in the figures."


_SENTENCES = {
    "dropped-records": _dropped,
    "probe-fault": _faults,
    "recording-stopped": _stopped,
    "device-steps-lost": _device_steps,
    "switched": _switched,
}
"""By the kind of the event; the text of `switched` is "on" or "off"."""


def diagnose(records: Tables, rules: RuleSet = "headrace") -> Diagnosis:
    """Return what is wrong with a run, why, and what would help.

    Args:
        records: The run's tables: `headrace.records.reader.Records`, or anything with `.table`.
        rules: Whose rules are evaluated. The verdict rests on Headrace's own in any case.

    Example:
        diagnose(open_records("runs/base")).verdict.sentence
    """
    tables = records if isinstance(records, CachedTables) else CachedTables(records)
    evidence = gather_evidence(tables)
    checked = {rule: check(evidence) for rule, check in RULES.items()}
    findings = rank_findings(
        [finding for finding in checked.values() if finding is not None], evidence
    )
    verdict = make_verdict(evidence, findings)
    gaps_found = missing_data(evidence.events)
    if rules == "sagemaker":
        from headrace.observe.doctor.sagemaker import evaluate  # seldom asked for

        return replace(evaluate(tables, verdict), gaps=gaps_found)
    quiet = tuple(rule for rule, finding in checked.items() if finding is None)
    return Diagnosis(verdict=verdict, findings=findings, quiet=quiet, gaps=gaps_found)
