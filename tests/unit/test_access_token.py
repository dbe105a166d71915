"""The token of the live page's server: kept for its user alone, and renewed in time."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from headrace.report.live.access_token import stored_token

ADDRESS = "127.0.0.1"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "headrace"


def test_it_stays_for_the_same_runs_and_address_alone(tmp_path: Path):
    first = stored_token(tmp_path, ADDRESS)
    assert len(first) >= 32
    assert stored_token(tmp_path, ADDRESS) == first
    others = {stored_token(tmp_path / "other", ADDRESS), stored_token(tmp_path, "0.0.0.0")}  # noqa: S104
    assert len({first, *others}) == 3


def test_nobody_else_can_read_it(state: Path, tmp_path: Path):
    stored_token(tmp_path, ADDRESS)
    (file,) = state.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


@pytest.mark.parametrize("spoil", ["old", "of the future", "readable", "short", "long", "a link"])
def test_one_that_is_old_or_that_others_may_have_changed_is_renewed(
    state: Path, tmp_path: Path, spoil: str
):
    first = stored_token(tmp_path, ADDRESS)
    (file,) = state.iterdir()
    if spoil in {"old", "of the future"}:
        moved_s = 8 * 86400 if spoil == "of the future" else -8 * 86400
        os.utime(file, (time.time() + moved_s,) * 2)
    elif spoil == "readable":
        file.chmod(0o640)
    elif spoil == "a link":
        target = file.rename(tmp_path / "elsewhere")
        file.symlink_to(target)
    else:
        file.write_text(first[:-1] if spoil == "short" else first + "x")
    second = stored_token(tmp_path, ADDRESS)
    assert second != first
    assert stored_token(tmp_path, ADDRESS) == second


def test_where_it_cannot_be_kept_it_is_this_servers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert stored_token(tmp_path, ADDRESS) != stored_token(tmp_path, ADDRESS)
