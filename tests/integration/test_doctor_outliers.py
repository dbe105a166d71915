"""Steps that take longer every so often: what ran then is named, whatever it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.records.reader import open_records
from recorded import SCRIPTS, check, record

SOURCE = (SCRIPTS / "interrupted.py").read_text().splitlines()


@pytest.mark.alone
@pytest.mark.parametrize("what", ["checkpoint", "garbage"])
def test_what_interrupts_training_every_so_often_is_named(tmp_path: Path, what: str):
    run = record(tmp_path, "interrupted", what)
    check(run)
    findings = {each.rule: each for each in diagnose(open_records(run.folder)).findings}
    outliers = findings["step-outliers"]
    assert outliers.evidence["every_steps"] == 10
    assert outliers.evidence["phase"] == "other"
    assert outliers.cause is not None
    assert Path(outliers.cause.file) == SCRIPTS / "interrupted.py"
    assert SOURCE[outliers.cause.line - 1].endswith(f" {what}")
    assert outliers.cause.name in {"save", "main"}
