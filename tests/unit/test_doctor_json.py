from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.doctor_report import print_diagnosis
from headrace.observe.doctor.diagnose import diagnose
from headrace.observe.doctor.model import RULE_SETS, RuleSet
from headrace.observe.doctor.rules import RULES
from json_schemas import check, read_schema
from run_tables import AUGMENT, Run, RunTables, play

SCHEMA = read_schema("diagnosis.schema.json")
RUNS = {
    "healthy": Run(workers=4, service_ms=8, busy_cores=3),
    "slow": Run(
        workers=2,
        service_ms=50,
        cores=2,
        busy_cores=1.9,
        worker_stacks=[(f"{AUGMENT}:31:RandomBlur.__call__", 1.0, 1.0)],
    ),
    "short": Run(batches=4),
    "no-loader": Run(loader=False),
}


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_diagnosis_is_what_the_schema_says(run: Run, rules: RuleSet):
    told = json.loads(json.dumps(diagnose(play(run), rules).to_json(), allow_nan=False))
    check(told, SCHEMA)
    assert told["rules"] == rules


def test_every_rule_has_found_something_or_is_quiet():
    told = diagnose(play(RUNS["slow"])).to_json()
    assert {finding["rule"] for finding in told["findings"]}.isdisjoint(told["quiet"])
    assert {"sync-bound", "memory-growth"} <= set(told["quiet"]) <= set(RULES)


def test_the_schema_itself_refuses_what_is_wrong():
    told = diagnose(play(RUNS["slow"])).to_json()
    told["findings"][0]["severity"] = "bad"
    with pytest.raises(AssertionError):
        check(told, SCHEMA)


@pytest.mark.parametrize("rules", RULE_SETS)
def test_a_run_without_any_record_conforms_too(rules: RuleSet):
    check(diagnose(RunTables(), rules).to_json(), SCHEMA)


def test_each_rule_is_named_after_its_file_and_tells_its_threshold():
    for name, rule in RULES.items():
        module = __import__(rule.__module__, fromlist=["check"])
        assert Path(module.__file__).stem == name.replace("-", "_")
        assert "Fires" in module.__doc__
    files = {path.stem for path in Path(module.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {name.replace("-", "_") for name in RULES}


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_report_fits_80_columns(run: Run, rules: RuleSet):
    text = StringIO()
    diagnosis = diagnose(play(run), rules)
    print_diagnosis(diagnosis, Console(file=text, width=80, highlight=False))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    told = " ".join(text.getvalue().split())
    assert diagnosis.verdict.sentence in told
    for finding in diagnosis.findings:
        assert finding.rule in told
    for rule in (*(each.rule for each in diagnosis.not_evaluated), *diagnosis.quiet):
        assert rules == "headrace" or rule in told
    if diagnosis.findings and diagnosis.findings[0].cause is not None:
        assert f"{AUGMENT}:31" in told
