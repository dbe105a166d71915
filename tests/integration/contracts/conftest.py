"""What tests of channels share: a folder with the script that a module names."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A job's folder, with the module's SCRIPT as train.py, and a cache of copies of its own."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(request.module.SCRIPT)
    return tmp_path
