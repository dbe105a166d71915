"""What rules of SageMaker Debugger's say of a run that has ended, where they were asked for."""

from __future__ import annotations

from headrace.launch.estimator.debugger import checked_rules, read_rules
from headrace.launch.estimator.rule_configs import DEFAULTS, REPORT
from headrace.launch.told import tell
from headrace.launch.verdict import tried
from headrace.observe.doctor.diagnose import diagnose
from headrace.records.reading import open_records
from headrace.records.run_folder import RunFolder


def tell_rules(folder: RunFolder, number: int) -> None:
    """Tell what each rule that an attempt was asked for has found, a line each.

    Whatever is wrong with the records, the run's own exit code stands.
    """
    for line in tried("rules", lambda: _lines(folder, number)) or ():
        tell(f"headrace: {line}\n")


def _lines(folder: RunFolder, number: int) -> list[str]:
    attempts = folder.attempts()
    asked = attempts[number - 1].asked if len(attempts) >= number else {}
    wanted = checked_rules(read_rules(asked.get("rules", []), ""))
    if not wanted:
        return []
    found = _outcomes(folder, number, list(DEFAULTS) if REPORT in wanted else wanted)
    more = f"more: headrace doctor {folder.path} --rules sagemaker"
    return [*(f"rule {line}" for line in found), more]


def _outcomes(folder: RunFolder, number: int, wanted: list[str]) -> list[str]:
    if not folder.records(number).exists():
        return [f"{rule}: not evaluated: nothing was recorded" for rule in wanted]
    found = diagnose(open_records(folder.path, number), "sagemaker")
    lines = [f"{each.rule}: {each.title}" for each in found.findings if each.rule in wanted]
    lines += [f"{rule}: found nothing" for rule in found.quiet if rule in wanted]
    return lines + [
        f"{each.rule}: not evaluated: {each.reason}"
        for each in found.not_evaluated
        if each.rule in wanted
    ]
