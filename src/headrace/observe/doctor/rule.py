"""The shape of a rule: a check of the evidence that returns a finding of its own name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Finding

RuleCheck = Callable[[Evidence], Finding | None]
REGISTERED: dict[str, RuleCheck] = {}


def rule(check: RuleCheck) -> RuleCheck:
    """Register a check_data_wait as the rule data-wait, which its findings then name."""
    name = check.__name__.removeprefix("check_").replace("_", "-")

    @functools.wraps(check)
    def named(evidence: Evidence) -> Finding | None:
        finding = check(evidence)
        return None if finding is None else replace(finding, rule=name)

    REGISTERED[name] = named
    return named
