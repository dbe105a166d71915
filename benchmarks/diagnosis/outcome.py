"""What the doctor said of a script, judged by what is planted in it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case

_PLACE = re.compile(r"([\w.-]+\.py):(\d+)")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a remedy of the first finding promises, where the case says how it is applied.

    Attributes:
        remedy: Its name.
        speedup: Predicted, with its 90 % interval.
        removal: The script's arguments that apply it.
    """

    remedy: str
    speedup: float
    low: float
    high: float
    removal: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the doctor reported of a script.

    Attributes:
        case: The script.
        findings: As `headrace doctor --json` prints them.
        sentence: The verdict.
        measured: The factor by which the script is faster with what was promised; None: not
            measured.
        recorded_rate: What the script printed of its speed as it was recorded; None: nothing.
        own_rate: The same of the runs that were measured, without Headrace.
        folder: The name of the run's folder.
    """

    case: Case
    findings: list[dict[str, Any]]
    sentence: str
    measured: float | None = None
    recorded_rate: float | None = None
    own_rate: float | None = None
    folder: str = ""

    @property
    def drift(self) -> float | None:
        """By how much the script was faster or slower as it was recorded; None: not known."""
        if self.recorded_rate is None or self.own_rate is None or self.case.whole_run:
            return None
        return abs(self.recorded_rate / self.own_rate - 1)

    @property
    def first(self) -> str:
        """The rule that is ranked first; "" where there is none."""
        return self.findings[0]["rule"] if self.findings else ""

    @property
    def rule_right(self) -> bool:
        """Whether that is the expected rule; of a control, whether no finding is the headline."""
        if self.case.rule is None:
            return all(finding["severity"] == "info" for finding in self.findings)
        return self.first in {self.case.rule, self.case.also}

    @property
    def line(self) -> str:
        """The line that the first finding names: file and number; "" where none.

        A file of the case is named as in `Case.files`, so that two files of one name differ; of
        another one, such as a library's, the name alone is given.
        """
        cause = self._cause
        if not cause.get("line"):
            return ""
        named = Path(cause["file"])
        file = next((each for each in self.case.files if named.match(each)), named.name)
        return f"{file}:{cause['line']}"

    @property
    def line_right(self) -> bool | None:
        """Whether a line that is named, or the function, is right; None where none is at fault.

        Named are the finding's cause and the places in its title, such as that of a loader.
        """
        case, cause = self.case, self._cause
        if not case.lines and not case.within:
            return None
        names = f"{cause.get('function', '')} {cause.get('transform', '')}"
        named = {self.line, *self._places_of_title}
        return bool(named & case.lines) or any(name in names for name in case.within)

    @property
    def _places_of_title(self) -> set[str]:
        """The places that the first finding's title names, in files of the case, as in `line`."""
        title = self.findings[0]["title"] if self.findings else ""
        files = Counter(Path(file).name for file in self.case.files)
        return {
            f"{file}:{line}"
            for name, line in _PLACE.findall(title)
            for file in self.case.files
            if Path(file).name == name and files[name] == 1
        }

    @property
    def right(self) -> bool:
        """Whether the diagnosis is right."""
        return self.rule_right and self.line_right is not False

    @property
    def promise(self) -> Promise | None:
        """What is to be measured; None where the doctor is wrong or predicts nothing of it."""
        if self.case.rule is None or not self.rule_right:
            return None
        remedies = {each["name"]: each for each in self.findings[0]["remedies"]}
        for name, removal in self.case.removals.items():
            found = remedies.get(name)
            if found is None or found["predicted_speedup"] is None:
                continue
            number = re.search(r"\d+", found["change"])
            workers = number.group() if number else ""
            return Promise(
                remedy=name,
                speedup=found["predicted_speedup"],
                low=found["low"],
                high=found["high"],
                removal=tuple(each.replace("{n}", workers) for each in removal),
            )
        return None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1; None where not measured."""
        if self.promise is None or self.measured is None:
            return None
        return self.promise.speedup / self.measured - 1

    @property
    def _cause(self) -> dict[str, Any]:
        return (self.findings[0]["cause"] or {}) if self.findings else {}

    def row(self) -> str:
        """Return the row of the table."""
        expected = self.case.rule or "healthy"
        if self.case.also:
            expected += f" or {self.case.also}"
        line = {None: "", True: "yes", False: f"no: {self.line or 'none'}"}[self.line_right]
        found = self.first or "nothing"
        answer = "yes" if self.right else "**no**"
        return (
            f"| `{self.case.name}` | {self.case.style} | {expected} | {found} | {line} | {answer} |"
        )

    def prediction_row(self) -> str:
        """Return the row of the table of predictions."""
        promise, measured, error = self.promise, self.measured, self.error
        if promise is None:
            why = "rule is wrong" if not self.rule_right else "nothing predicted"
            return f"| `{self.case.name}` | {why} | | | |"
        predicted = f"{promise.speedup:.2f} ({promise.low:.2f} to {promise.high:.2f})"
        change = f"{promise.remedy}: `{' '.join(promise.removal)}`"
        numbers = f"{measured:.2f} | {error:+.1%}" if measured and error is not None else "|"
        return f"| `{self.case.name}` | {change} | {predicted} | {numbers} |"

    def score(self) -> dict[str, Any]:
        """Return what is kept of the first time that the doctor saw the script."""
        return {
            "rule": self.first,
            "rule_right": self.rule_right,
            "line": self.line,
            "line_right": self.line_right,
            "predicted": self.promise.speedup if self.promise else None,
            "measured": self.measured,
            "error": self.error,
            "sentence": self.sentence,
        }
