"""A training process that Ray has started on another machine than its run's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.bootstrap.process_start import is_on_another_machine
from headrace.cluster.host_identity import boot_id
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.records.layout import RINGS
from headrace.records.live_switch import create_live_switch
from jobs import clean_environment
from recorded import SCRIPTS

TRAINS = """
import torch
from points import Descent
weight = torch.nn.Parameter(torch.ones(1))
optimizer = Descent([weight])
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
"""


def test_it_says_once_that_it_is_not_recorded_and_writes_nothing(tmp_path: Path):
    rings = tmp_path / RINGS
    rings.mkdir()
    create_live_switch(tmp_path, interval_s=0.5)
    (tmp_path / "train.py").write_text(TRAINS)
    source = str(Path(SITECUSTOMIZE_DIR).parents[2])
    for boot, warnings, written in (("another", 1, 0), (boot_id(), 0, 1)):
        ended = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env=clean_environment(
                HEADRACE_RECORDS_DIR=str(tmp_path),
                HEADRACE_RECORDS_BOOT=boot,
                RANK="3",
                PYTHONPATH=f"{SITECUSTOMIZE_DIR}:{source}:{SCRIPTS}",
            ),
        )
        assert ended.stderr.count("rank 3 trains on") == warnings
        assert len(list(rings.glob("*.ring"))) == written


def test_where_a_run_s_records_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for boot, folder, is_another in (
        ("another", tmp_path, True),
        (boot_id(), tmp_path / "of another container", True),
        (boot_id(), tmp_path, False),
        ("", tmp_path, False),  # a disk that machines share
    ):
        monkeypatch.setenv("HEADRACE_RECORDS_DIR", str(folder))
        monkeypatch.setenv("HEADRACE_RECORDS_BOOT", boot)
        assert is_on_another_machine() is is_another
