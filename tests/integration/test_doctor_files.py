"""A run that waits for small files: what is recorded of reads, and what each set of rules says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from headrace.observe.doctor.debugger_rules import SAGEMAKER_RULES
from headrace.records.reader import open_records
from jobs import run_here

SCRIPT = Path(__file__).parents[2] / "benchmarks/diagnosis/scripts/small_files.py"
FILE_BYTES = 256 * 48


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "run"
    # One thread: more of them would take the cores from the workers as they spin.
    words = ("run", "--run-dir", str(folder), str(SCRIPT))
    ended = run_here(folder.parent, *words, OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    return folder


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return run_here(Path.cwd(), "doctor", *words)


def test_reads_and_their_bytes_are_counted(run: Path):
    batches = open_records(run).table("batches")
    samples = sum(batches.column("samples").to_pylist())
    assert samples == 800
    read = sum(batches.column("read_bytes").to_pylist())
    assert samples * FILE_BYTES <= read <= 1.2 * samples * FILE_BYTES
    # A file takes one read and another that finds its end, or some more; the looks are left out.
    assert 2 * samples <= sum(batches.column("reads").to_pylist()) <= 8 * samples


def test_no_stack_has_a_line_that_is_none(run: Path):
    stacks = open_records(run).table("stacks").column("stack").to_pylist()
    assert stacks
    assert not any(":None:" in text for text in stacks)


def test_small_files_are_found_at_the_line_that_reads_them(run: Path):
    result = doctor(str(run), "--json")
    assert result.returncode == 0
    diagnosis = json.loads(result.stdout)
    assert diagnosis["rules"] == "headrace"
    assert diagnosis["not_evaluated"] == []
    worst = diagnosis["findings"][0]
    assert worst["rule"] == "small-files"
    assert SCRIPT.read_text().splitlines()[worst["cause"]["line"] - 1].endswith("# at fault")
    assert {remedy["name"] for remedy in worst["remedies"]} >= {"shards"}


def test_the_rules_of_sagemaker_debugger_say_what_they_lack(run: Path):
    result = doctor(str(run), "--rules", "sagemaker", "--json")
    assert result.returncode == 0
    diagnosis = json.loads(result.stdout)
    assert diagnosis["rules"] == "sagemaker"
    assert "waits for data" in diagnosis["verdict"]["sentence"]
    lacking = {each["rule"]: each["reason"] for each in diagnosis["not_evaluated"]}
    found = [finding["rule"] for finding in diagnosis["findings"]]
    assert found[-2:] == ["OverallSystemUsage", "OverallFrameworkMetrics"]
    assert "MaxInitializationTime" in diagnosis["quiet"]
    assert {*found, *lacking, *diagnosis["quiet"]} == set(SAGEMAKER_RULES)
    assert {"CPUBottleneck", "LowGPUUtilization"} <= lacking.keys()


def test_in_the_terminal_no_rule_is_left_out(run: Path):
    result = doctor(str(run), "--rules", "sagemaker")
    assert result.returncode == 0
    assert "SageMaker Debugger's rules:" in result.stdout
    assert "not evaluated CPUBottleneck: " in result.stdout
    assert all(rule in result.stdout for rule in SAGEMAKER_RULES)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--backtest",), "--backtest says nothing of RUN"),
        (("--ranks", "4", "--rules", "sagemaker"), "--ranks says nothing of --rules"),
    ],
)
def test_what_would_be_left_unheard_is_refused(run: Path, flags: tuple[str, ...], message: str):
    ended = doctor(str(run), *flags)
    assert ended.returncode == 2
    assert ended.stderr == f"headrace: {message}: leave one of them out.\n"


def test_other_rules_are_refused_by_name(run: Path):
    result = doctor(str(run), "--rules", "sagmaker")
    assert result.returncode == 2
    assert result.stderr == (
        "headrace: --rules sagmaker: there are no such rules. Write headrace or sagemaker.\n"
    )
