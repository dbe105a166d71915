"""From a run's records to its diagnosis."""

from __future__ import annotations

from dataclasses import replace

from headrace.observe.doctor.evidence import gather
from headrace.observe.doctor.gaps import gaps
from headrace.observe.doctor.model import Diagnosis, RuleSet
from headrace.observe.doctor.ranking import rank
from headrace.observe.doctor.rules import RULES
from headrace.observe.doctor.sagemaker.evaluate import evaluate
from headrace.observe.doctor.verdict import decide
from headrace.observe.whatif.tables import ReadOnce, Tables


def diagnose(records: Tables, rules: RuleSet = "headrace") -> Diagnosis:
    """Return what is wrong with a run, why, and what would help.

    Args:
        records: The run's tables: `headrace.records.reading.Records`, or anything with `.table`.
        rules: Whose rules the findings are of. The verdict rests on Headrace's own in any case.

    Example:
        diagnose(open_records("runs/base")).verdict.sentence
    """
    tables = records if isinstance(records, ReadOnce) else ReadOnce(records)
    evidence = gather(tables)
    checked = {rule: check(evidence) for rule, check in RULES.items()}
    findings = rank([finding for finding in checked.values() if finding is not None], evidence)
    verdict = decide(evidence, findings)
    lacking = gaps(evidence.events)
    if rules == "sagemaker":
        return replace(evaluate(tables, verdict), gaps=lacking)
    quiet = tuple(rule for rule, finding in checked.items() if finding is None)
    return Diagnosis(verdict=verdict, findings=findings, quiet=quiet, gaps=lacking)
