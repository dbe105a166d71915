"""The doctor's results: a verdict, and findings with their evidence, cause and remedies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from headrace.core.overrides import Override

Severity = Literal["info", "warning", "serious", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "serious", "critical")
Bound = Literal["data", "compute", "sync", "copy", "rank", "other", "unknown"]
RuleSet = Literal["headrace", "sagemaker"]
RULE_SETS: tuple[RuleSet, ...] = ("headrace", "sagemaker")
Fact: TypeAlias = float | int | str | None
_UNNAMED_SCOPE = re.compile(r"((\.<locals>)?\.<(genexpr|(list|set|dict)comp|lambda)>)+$")
"""Scopes without a name of their own count to the function around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The code that a finding is about; empty or 0 where unknown."""

    file: str = ""
    line: int = 0
    function: str = ""  # followed by the library call below it, if any
    transform: str = ""
    share: float = 0.0  # of the time in question, 0 to 1
    library: str = ""  # whose code it is; "": the user's
    loader: str = ""  # with a library: the loader that calls it, and `file` and `line` are its own

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
        if self.library and self.loader:
            return f"{self.name} for the loader{self.loader}"
        return " at ".join(part for part in (self.name, self.place) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that can be made; numbers are None if its effect is not predicted."""

    name: str  # what is changed: workers, prefetch, transform, ...
    change: str  # from what to what, to be read after "with"; a removal begins with "no"
    predicted_speedup: float | None = None  # samples a second with it over those without
    low: float | None = None  # lower end of the 90 % interval
    high: float | None = None
    how: str  # what to write where
    overrides: tuple[Override, ...] = ()  # the same without editing the script, if possible

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
    """The result of a rule that fired."""

    rule: str
    severity: Severity
    title: str  # without a full stop
    seconds_lost: float  # of a rank, over the steps that count
    evidence: Mapping[str, Fact]  # with the unit in the name
    cause: Cause | None = None  # None if there is none, or it is unknown
    remedies: tuple[Remedy, ...] = ()  # best first
    forecast: bool = False  # predicted for a run not made yet, and so has cost nothing
    share_lost: float | None = None  # of the time that predictions of its remedies are about


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """A rule that could not be evaluated, because too little was recorded."""

    rule: str
    reason: str  # what is missing, without a full stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where the time went, in one sentence."""

    sentence: str
    bound: Bound
    data_wait_share: float | None
    steps: int  # training steps that count, over all ranks
    step_ms: float | None  # their mean; None if there are none
    phase_shares: Mapping[str, float]  # of step time, by the host's clock
    calibration: float | None = None  # measured over simulated step time, before fitting
    device_phase_shares: Mapping[str, float] = field(default_factory=dict)
    time_shares: Mapping[str, float] = field(default_factory=dict)
    """The shares of `wall_time.TIME_PARTS` in run_seconds; empty if steps are nearly all of it."""
    start_seconds: float = 0.0  # before a rank asks for its first batch, or trains without any,
    # and in imports of libraries after it
    run_seconds: float = 0.0  # the rest, until its records end
    samples_per_s: float | None = None  # of all ranks together; None where not all were counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The doctor's full result for a run."""

    verdict: Verdict
    findings: tuple[Finding, ...]  # worst first
    rules: RuleSet = "headrace"  # whose rules were evaluated
    quiet: tuple[str, ...] = ()  # rules that were evaluated and did not fire
    not_evaluated: tuple[NotEvaluated, ...] = ()
    gaps: tuple[str, ...] = ()  # what the records lack, a sentence each

    def to_json(self) -> Any:
        """Return the diagnosis as JSON, described by docs/diagnosis.schema.json."""
        return as_json(self)


_NOT_WRITTEN = {"overrides", "library", "loader", "share_lost"}  # fields
_KEYS = {"forecast": "foretold"}  # of fields with other names
_LEFT_OUT_IF_EMPTY = {
    "device_phase_shares", "time_shares", "start_seconds", "run_seconds", "samples_per_s",
}  # fmt: skip


def as_json(value: Any) -> Any:
    """Return results as JSON's own types, with rounded numbers; see `rounded`."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, int | float):  # before what asks abstract classes
        return rounded(value)
    if is_dataclass(value):
        value = {
            _KEYS.get(name, name): part
            for name in (each.name for each in fields(value) if each.name not in _NOT_WRITTEN)
            if (part := getattr(value, name)) or name not in _LEFT_OUT_IF_EMPTY
        }
    if isinstance(value, Mapping):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    return rounded(value)


def rounded(value: float | None) -> float | None:
    """Return a number that JSON can hold, rounded to four decimal places; None if not finite."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else round(float(value), 4)
