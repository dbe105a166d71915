"""A canary in every place of a job's command line: no file, argument list, page or error has it."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from jobs import attempts_of
from jobs_here import run_job

CANARY = "CANARYd41d8cd98f00b204"
SECRETS = [
    "--password", CANARY, f"--my_api_key={CANARY}", f"--wandb-key={CANARY}", f"hub.token={CANARY}",
    json.dumps({"lr": 1, "auth": {"client_secret": CANARY}}), f"--db=postgres://u:p@{CANARY}@h/x",
    f"https://h/x?X-Amz-Signature={CANARY}&a=1", "--header", f"Authorization: Bearer {CANARY}",
    f"bash -c 'export HF_TOKEN={CANARY}; true'",
]  # fmt: skip
# The script itself is given what was typed, and the launcher runs within the tests' process.
TRAIN = """
import os, pathlib, torch

def parent_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]

launcher = parent_of(os.getppid())
children = pathlib.Path(f"/proc/{launcher}/task").glob("*/children")
others = {pid for each in children for pid in each.read_text().split()} - {str(os.getpid())}
assert str(os.getppid()) in others
shown = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in others]
assert any("headrace" in each for each in shown)
pathlib.Path("argument-lists").write_text("\\n".join(shown))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
password = "CANARYd41d8cd98f00b204"
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "train.py").write_text(TRAIN)
    flags = ["--run-dir", "r", "--contract", "sagemaker", "--environment", f"HF_TOKEN={CANARY}"]
    flags += ["--hyperparameter", f"api_key={CANARY}"]
    return folder, run_job(folder, *flags, "train.py", *SECRETS)


def test_no_file_of_a_run_has_a_secret_that_was_typed(ended):
    folder, job = ended
    assert job.returncode == 3, job.stderr
    files = [path for path in (folder / "r").rglob("*") if path.is_file()]
    assert {"run.json", "report.html", "failure"} <= {path.name for path in files}
    found = {path.name for path in files if CANARY.encode() in path.read_bytes()}
    assert found == {"hyperparameters.json"}  # which the platform's contract gives the script
    (attempt,) = attempts_of(folder / "r")
    assert len(attempt["argv"]) == 1 + len(SECRETS)
    assert attempt["hides_secrets"]


def test_no_other_process_of_a_job_is_given_a_secret_in_its_arguments(ended):
    folder, _ = ended
    assert CANARY not in (folder / "argument-lists").read_text()


def test_nobody_else_reads_a_run_s_folder(ended):
    folder, _ = ended
    assert stat.S_IMODE((folder / "r").stat().st_mode) == 0o700


def test_what_is_printed_has_no_secret(ended, tmp_path: Path):
    _, job = ended
    assert CANARY not in job.stdout + job.stderr
    (tmp_path / "train.py").touch()
    for flags in (
        ["--dry-run", "--contract", "sagemaker", "--environment", f"HF_TOKEN={CANARY}"],
        ["--dry-run", "--contract", "vertex", "--hyperparameter", f"api_key={CANARY}"],
        ["--dry-run", "--contract", "sagemaker", "--hyperparameter", f"api_key={CANARY}"],
        ["--dry-run", "--contract", "sagemaker-v3", "--hyperparameter", f"api_key={CANARY}"],
        ["--no-such-flag", "1", f"--api-key={CANARY}"],
        ["--hyperparameter", f"api_key:{CANARY}"],
        ["--checkpoint-uri", f"https://u:p@{CANARY}@h/x"],
        ["--output-path", f"s3://k:{CANARY}@b/x"],
        ["--environment", f"HF_TOKEN:{CANARY}"],
        ["--cache-limit", f"password={CANARY}"],
        ["--max-run", f"token={CANARY}"],
        ["--apply", f"token={CANARY}"],
        ["--metric", f"loss=(api_key={CANARY}"],
        ["--dependency", f"https://u:{CANARY}@h/x"],
    ):
        printed = run_job(tmp_path, *flags, "train.py", *SECRETS)
        assert CANARY not in printed.stdout + printed.stderr, flags


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.yaml", f"environment:\n  HF_TOKEN: {CANARY} : x: ["),
        ("job.yaml", f"notes:\n  - {CANARY} : x: ["),
        ("job.toml", f'[environment]\nHF_TOKEN = "{CANARY}'),
        ("job.toml", f'environment = ["HF_TOKEN={CANARY}"]'),
        ("job.toml", f'max_run = "token={CANARY}"'),
    ],
)
def test_what_is_wrong_in_a_job_file_is_told_without_its_secrets(
    tmp_path: Path, name: str, text: str
):
    (tmp_path / "train.py").touch()
    (tmp_path / name).write_text(f"{text}\n")
    printed = run_job(tmp_path, name, "--dry-run")
    assert printed.returncode == 2, printed.stderr
    assert name in printed.stderr or "max_run" in printed.stderr
    assert CANARY not in printed.stdout + printed.stderr
