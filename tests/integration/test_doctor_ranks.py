"""`headrace doctor --ranks` on a recorded run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import run_here
from json_schemas import check, read_schema

SCRIPTS = Path(__file__).parents[1] / "scripts" / "probed"


def printed(folder: Path, *words: str, code: int = 0) -> str:
    ended = run_here(folder, *words)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    flags = ("--name", "one", "--profile-interval", "100ms")
    printed(folder, "run", *flags, str(SCRIPTS / "waiting.py"))
    return folder


def test_a_real_run_is_predicted_at_other_ranks(recorded: Path):
    output = json.loads(printed(recorded, "doctor", "--ranks", "3", "--json", "one"))
    check(output, read_schema("forecast.schema.json"))
    assert (output["now"]["ranks"], output["then"]["ranks"]) == (1, 3)
    one, three = (output[when]["batches_per_s"] for when in ("now", "then"))
    # Its samples are waited for, so three ranks make more, if the workers' threads do not spin:
    # the interval has both.
    assert one["value"] * 0.99 <= three["high"] <= one["high"] * 3.1
    assert three["low"] <= three["value"] <= three["high"]
    same = json.loads(printed(recorded, "doctor", "--ranks", "1", "--json"))
    assert same["now"] == same["then"]
    diagnosis = json.loads(printed(recorded, "doctor", "--json"))
    step_ms = diagnosis["verdict"]["step_ms"]
    assert same["now"]["batches_per_s"]["value"] == pytest.approx(1000 / step_ms, rel=0.1)


def test_ranks_that_need_more_than_the_cores_are_predicted_to_wait(tmp_path: Path):
    flags = ("--name", "fed", "--profile-interval", "100ms")
    printed(tmp_path, "run", *flags, str(SCRIPTS / "counted.py"))
    host = json.loads(printed(tmp_path, "doctor", "--ranks", "1", "--json"))
    assert host["cpu_ms_a_batch"] >= 30  # four samples of 7.5
    cores = int(host["cores"])  # each for a rank that needs one and a half
    then = json.loads(printed(tmp_path, "doctor", "--ranks", str(cores), "--json"))["then"]
    most = 1000 * host["cores"] / host["cpu_ms_a_batch"]
    assert then["batches_per_s"]["value"] <= most * 1.01
    assert then["data_wait_share"]["value"] >= 0.15
    assert then["worker_cpu_factor"]["high"] == 1  # workers of one thread wait for no other


def test_it_is_printed_in_words(recorded: Path):
    output = printed(recorded, "doctor", "--ranks", "2")
    assert output.startswith("At 2 ranks: ")
    assert "Measured at 1 rank: " in output


def test_what_cannot_be_is_reported(recorded: Path, tmp_path: Path):
    assert "--ranks 0: give a whole number" in printed(recorded, "doctor", "--ranks", "0", code=2)
    assert "Invalid value for" in printed(recorded, "doctor", "--ranks", "two", code=2)
    printed(recorded, "doctor", "--ranks", "2", "nothing", code=2)
    (tmp_path / "idle.py").write_text("print()\n")
    printed(tmp_path, "run", "idle.py")
    assert "do not say enough" in printed(tmp_path, "doctor", "--ranks", "2", code=1)
