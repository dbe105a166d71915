"""`headrace doctor --ranks` on a recorded run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import run_here
from json_schemas import check, read_schema

SCRIPTS = Path(__file__).parents[1] / "scripts" / "probed"


def said(folder: Path, *words: str, code: int = 0) -> str:
    ended = run_here(folder, *words)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    flags = ("--name", "one", "--profile-interval", "100ms")
    said(folder, "run", *flags, str(SCRIPTS / "waiting.py"))
    return folder


def test_a_real_run_is_foretold_at_other_ranks(recorded: Path):
    told = json.loads(said(recorded, "doctor", "--ranks", "3", "--json", "one"))
    check(told, read_schema("foretelling.schema.json"))
    assert (told["now"]["ranks"], told["then"]["ranks"]) == (1, 3)
    one, three = (told[when]["batches_per_s"] for when in ("now", "then"))
    # Its samples are waited for, so three ranks make more, if the workers' threads do not spin:
    # the interval has both.
    assert one["value"] * 0.99 <= three["high"] <= one["high"] * 3.1
    assert three["low"] <= three["value"] <= three["high"]
    same = json.loads(said(recorded, "doctor", "--ranks", "1", "--json"))
    assert same["now"] == same["then"]
    diagnosis = json.loads(said(recorded, "doctor", "--json"))
    step_ms = diagnosis["verdict"]["step_ms"]
    assert same["now"]["batches_per_s"]["value"] == pytest.approx(1000 / step_ms, rel=0.1)


def test_ranks_that_need_more_than_the_cores_are_foretold_to_wait(tmp_path: Path):
    flags = ("--name", "fed", "--profile-interval", "100ms")
    said(tmp_path, "run", *flags, str(SCRIPTS / "counted.py"))
    host = json.loads(said(tmp_path, "doctor", "--ranks", "1", "--json"))
    assert host["cpu_ms_a_batch"] >= 30  # four samples of 7.5
    cores = int(host["cores"])  # each for a rank that needs one and a half
    then = json.loads(said(tmp_path, "doctor", "--ranks", str(cores), "--json"))["then"]
    most = 1000 * host["cores"] / host["cpu_ms_a_batch"]
    assert then["batches_per_s"]["value"] <= most * 1.01
    assert then["data_wait_share"]["value"] >= 0.15
    assert then["worker_cpu_factor"]["high"] == 1  # workers of one thread wait for no other


def test_it_is_told_in_words(recorded: Path):
    told = said(recorded, "doctor", "--ranks", "2")
    assert told.startswith("At 2 ranks: ")
    assert "Measured at 1 rank: " in told


def test_what_cannot_be_is_told(recorded: Path, tmp_path: Path):
    assert "--ranks 0: give a whole number" in said(recorded, "doctor", "--ranks", "0", code=2)
    assert "Invalid value for" in said(recorded, "doctor", "--ranks", "two", code=2)
    said(recorded, "doctor", "--ranks", "2", "nothing", code=2)
    (tmp_path / "idle.py").write_text("print()\n")
    said(tmp_path, "run", "idle.py")
    assert "do not say enough" in said(tmp_path, "doctor", "--ranks", "2", code=1)
