"""Kill -9 anything at any instant: no sample is lost and none comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import run


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_duplicated_over_kills_and_other_world_sizes(tmp_path: Path):
    found = run(tmp_path, kills=3, seed=4, epochs=3)
    assert found.finished
    assert found.attempts >= 3
    assert found.lost == []
    assert found.duplicated == []
    assert found.counted == 3 * 203
    assert found.replaced == 3
