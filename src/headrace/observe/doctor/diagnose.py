"""From a run's records to its diagnosis."""

from __future__ import annotations

from headrace.observe.doctor.evidence import gather
from headrace.observe.doctor.model import Diagnosis
from headrace.observe.doctor.ranking import rank
from headrace.observe.doctor.rules import RULES
from headrace.observe.doctor.verdict import decide
from headrace.observe.whatif.tables import ReadOnce, Tables


def diagnose(records: Tables) -> Diagnosis:
    """Return what is wrong with a run, why, and what would help.

    Args:
        records: The run's tables: `headrace.records.reading.Records`, or anything with `.table`.

    Example:
        diagnose(open_records("runs/base")).verdict.sentence
    """
    evidence = gather(records if isinstance(records, ReadOnce) else ReadOnce(records))
    found = [finding for check in RULES.values() if (finding := check(evidence)) is not None]
    findings = rank(found, evidence)
    return Diagnosis(verdict=decide(evidence, findings), findings=findings)
