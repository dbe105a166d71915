"""The doctor's results: a verdict, and findings with their evidence, cause and remedies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from headrace.core.overrides import Override

Severity = Literal["info", "warning", "serious", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "serious", "critical")
Bound = Literal["data", "compute", "sync", "copy", "rank", "other", "unknown"]
RuleSet = Literal["headrace", "sagemaker"]
RULE_SETS: tuple[RuleSet, ...] = ("headrace", "sagemaker")
Fact: TypeAlias = float | int | str | None
_UNNAMED_SCOPE = re.compile(r"(\.<locals>)?\.<(genexpr|(list|set|dict)comp|lambda)>$")
"""Scopes without a name of their own count to the function around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The code that a finding is about.

    Attributes:
        file: Source file; empty if unknown.
        line: Line in it; 0 if unknown.
        function: Function there, followed by the library call below it, if any.
        transform: Name of the transform; empty if it is none.
        share: Its share of the time in question, 0 to 1.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    transform: str = ""
    share: float = 0.0

    @property
    def place(self) -> str:
        """The file name without folders, and the line: augment.py:31."""
        name = Path(self.file).name
        return f"{name}:{self.line}" if name and self.line else name

    @property
    def name(self) -> str:
        """The transform's or else the function's short name: RandomBlur, Faces.__getitem__."""
        if self.transform:
            return self.transform.rsplit(": ", 1)[-1]
        function = _UNNAMED_SCOPE.sub("", self.function.split(" > ", maxsplit=1)[0])
        function = function.rsplit("<locals>.", 1)[-1]
        for called in (".__call__", ".forward"):
            function = function.removesuffix(called)
        return "" if function == "<module>" else function

    def __str__(self) -> str:
        """Return name and place: RandomBlur at augment.py:31."""
        return " at ".join(part for part in (self.name, self.place) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that can be made.

    Attributes:
        name: What is changed: workers, prefetch, transform, ...
        change: From what to what, to be read after "with"; a removal begins with "no".
        predicted_speedup: Samples a second with it over those without; None if not predicted.
        low: Lower end of the 90 % interval; None if not predicted.
        high: Upper end; None if not predicted.
        how: What to write where.
        overrides: The same without editing the script; empty if that is impossible.
    """

    name: str
    change: str
    predicted_speedup: float | None = None
    low: float | None = None
    high: float | None = None
    how: str
    overrides: tuple[Override, ...] = ()

    @property
    def prediction(self) -> str:
        """The speed-up and its interval: 1.6x (1.4 to 1.7); empty if not predicted."""
        if self.predicted_speedup is None or self.low is None or self.high is None:
            return ""
        return f"{self.predicted_speedup:.1f}x{self.interval}"

    @property
    def interval(self) -> str:
        """The interval, with a blank before it; empty if its ends read the same."""
        if self.low is None or self.high is None:
            return ""
        low, high = f"{self.low:.1f}", f"{self.high:.1f}"
        return f" ({low} to {high})" if low != high else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a rule that fired.

    Attributes:
        rule: The rule's id.
        severity: How bad it is.
        title: What was found, without a full stop.
        seconds_lost: Seconds that a rank lost to it over the steps that count.
        evidence: The numbers that support it, with the unit in the name.
        cause: The code at fault; None if there is none, or it is unknown.
        remedies: What can be done, best first.
        foretold: Whether it is predicted for a run not made yet, and so has cost nothing.
    """

    rule: str
    severity: Severity
    title: str
    seconds_lost: float
    evidence: Mapping[str, Fact]
    cause: Cause | None = None
    remedies: tuple[Remedy, ...] = ()
    foretold: bool = False


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """A rule that could not be evaluated, because too little was recorded.

    Attributes:
        rule: The rule's id.
        reason: What is missing, without a full stop.
    """

    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where the time went, in one sentence.

    Attributes:
        sentence: The sentence.
        bound: What limits the run.
        data_wait_share: Data wait over step time, 0 to 1: the accelerator's by its own clock if
            known, otherwise the script's. None with too few steps.
        steps: Training steps that count, over all ranks.
        step_ms: Their mean, in milliseconds; None if there are none.
        phase_shares: The share of step time of each phase, by the host's clock.
        calibration: Measured over simulated step time, before fitting; None if not simulated.
        device_phase_shares: The same by the accelerator's clock; empty if unknown.
    """

    sentence: str
    bound: Bound
    data_wait_share: float | None
    steps: int
    step_ms: float | None
    phase_shares: Mapping[str, float]
    calibration: float | None = None
    device_phase_shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The doctor's full result for a run.

    Attributes:
        verdict: The verdict.
        findings: The findings, worst first.
        rules: Whose rules were evaluated.
        quiet: Rules that were evaluated and did not fire.
        not_evaluated: Rules that could not be evaluated.
        gaps: What the records lack, a sentence each.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    rules: RuleSet = "headrace"
    quiet: tuple[str, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()
    gaps: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON, described by docs/diagnosis.schema.json."""
        return {
            "verdict": _verdict_json(self.verdict),
            "findings": [_finding_json(finding) for finding in self.findings],
            "rules": self.rules,
            "quiet": list(self.quiet),
            "not_evaluated": [
                {"rule": each.rule, "reason": each.reason} for each in self.not_evaluated
            ],
            "gaps": list(self.gaps),
        }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    content: dict[str, Any] = {
        "sentence": verdict.sentence,
        "bound": verdict.bound,
        "data_wait_share": rounded(verdict.data_wait_share),
        "steps": verdict.steps,
        "step_ms": rounded(verdict.step_ms),
        "phase_shares": {name: rounded(s) for name, s in verdict.phase_shares.items()},
        "calibration": rounded(verdict.calibration),
    }
    by_device = {name: rounded(s) for name, s in verdict.device_phase_shares.items()}
    return {**content, "device_phase_shares": by_device} if by_device else content


def _finding_json(finding: Finding) -> dict[str, Any]:
    cause = finding.cause
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "title": finding.title,
        "seconds_lost": rounded(finding.seconds_lost),
        "evidence": {
            name: fact if isinstance(fact, str) else rounded(fact)
            for name, fact in finding.evidence.items()
        },
        "cause": None
        if cause is None
        else {
            "file": cause.file,
            "line": cause.line,
            "function": cause.function,
            "transform": cause.transform,
            "share": rounded(cause.share),
        },
        "remedies": [remedy_json(remedy) for remedy in finding.remedies],
        "foretold": finding.foretold,
    }


def remedy_json(remedy: Remedy) -> dict[str, Any]:
    """Return a remedy as JSON's own types."""
    return {
        "name": remedy.name,
        "change": remedy.change,
        "predicted_speedup": rounded(remedy.predicted_speedup),
        "low": rounded(remedy.low),
        "high": rounded(remedy.high),
        "how": remedy.how,
    }


def rounded(value: float | None) -> float | None:
    """Return a number that JSON can hold, rounded to four decimal places; None if not finite."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else round(float(value), 4)
