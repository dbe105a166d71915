"""Results of a benchmark's cases, each written down at once: an interrupted one goes on."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from report import ROOT


class CaseResults:
    """The results of one benchmark, a line of JSON each, in bench-data/.

    Args:
        name: Of the benchmark; the file's stem.
        go_on: Results of the same commit are kept; else the file is begun anew.
    """

    def __init__(self, name: str, *, go_on: bool) -> None:
        self._path = ROOT / "bench-data" / f"{name}.jsonl"
        self._path.parent.mkdir(exist_ok=True)
        self._commit = _commit()
        self._found: dict[str, Any] = {}
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        for line in lines if go_on else ():
            if line.endswith("\n"):  # a last one may be cut short
                case = json.loads(line)
                if case["commit"] == self._commit:
                    self._found[case["case"]] = case["result"]
        self._path.write_text("".join(map(self._line, self._found)))

    def get(self, case: str) -> Any:
        """Return the result of a case; None where it has not been run."""
        return self._found.get(case)

    def add(self, case: str, result: Any) -> None:
        """Write down the result of a case, which JSON can hold."""
        self._found[case] = result
        with self._path.open("a") as file:
            file.write(self._line(case))

    def _line(self, case: str) -> str:
        content = {"case": case, "commit": self._commit, "result": self._found[case]}
        return json.dumps(content) + "\n"


def _commit() -> str:
    """Return the commit's hash; a changed working tree has a name of its own."""
    return subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.strip()  # fmt: skip
