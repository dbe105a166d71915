"""The outputs of a job's attempts, collected from several hosts."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.files import temporary_name
from headrace.jobs.sync.output_process import merge_folders


def test_a_file_that_was_left_half_written_is_no_output(tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.pt").touch()
    (tmp_path / "model" / temporary_name()).touch()  # its writer was killed
    assert merge_folders({"algo-1": tmp_path}, print).keys() == {"model/weights.pt"}


def test_of_files_with_one_name_the_newest_is_taken_and_that_is_reported(tmp_path: Path):
    reports: list[str] = []
    for host in ("algo-1", "algo-2"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "weights.pt").touch()
    folders = {host: tmp_path / host for host in ("algo-1", "algo-2")}
    for newest, its_folder in folders.items():
        for host, folder in folders.items():
            time_ns = 2_000_000_000 if host == newest else 1_000_000_000
            os.utime(folder / "weights.pt", ns=(time_ns, time_ns))
        found = merge_folders(folders, reports.append)
        assert found == {"weights.pt": its_folder / "weights.pt"}
    report = "weights.pt was made by several hosts, algo-2 among them; the newest is taken"
    assert reports == [report, report]
