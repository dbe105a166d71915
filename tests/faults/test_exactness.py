"""Kill -9 anything at any instant: no sample is lost and none comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import run, schedule
from s3_server import S3Server

EPOCHS = 16
SEED = 1


@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_duplicated_over_kills_and_other_world_sizes(
    tmp_path: Path, s3_server: S3Server
):
    # So many epochs that no attempt can come to the end before its kill.
    found = run(s3_server, tmp_path, list(schedule(3, SEED, on_cluster=False)), EPOCHS)
    assert found.finished
    assert found.attempts == 4
    assert found.lost == []
    assert found.duplicated == []
    assert found.counted == EPOCHS * 203
    assert found.replaced == EPOCHS
