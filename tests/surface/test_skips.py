"""Tests that the machine may keep from running: CI fails where it should have run them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import machine

TESTS = Path(__file__).parents[1]
MAY_BE_MISSING = {
    "goldens/test_goldens.py": "they were written by root on a host without devices",
    "integration/test_cuda.py": "CUDA devices, which CI does not have",
    "integration/test_report.py": "Chromium",
    "integration/test_storage_fork.py": "torch's own data package, in a script of its own",
    "integration/test_train_prepare.py": "a machine without CUDA devices",
    "unit/test_kuberay_file.py": "a cluster's file, which a variable names",
    "unit/test_storage_settings.py": "boto3",
}
"""Files with skips of their own, and what CI may lack."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    machine._why_missing.cache_clear()
    yield
    machine._why_missing.cache_clear()


def test_tests_are_skipped_in_one_place_but_for_what_ci_lacks():
    own = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if re.search(r"mark\.skipif|pytest\.skip\(|importorskip", path.read_text())
    }
    assert own == {*MAY_BE_MISSING, "machine.py", "surface/test_skips.py"}


def test_what_ci_requires_is_something_that_the_tests_know():
    text = (TESTS.parent / ".ci" / "run").read_text()
    assert set(re.findall(r"require ([a-z-]+)", text)) == set(machine.ABILITIES)


@pytest.mark.parametrize("ability", ["git", "fuse", "processes"])
def test_what_is_missing_skips_and_where_it_is_required_fails(
    ability: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HEADRACE_TESTS_REQUIRE", "networks disks")
    assert machine.needs(ability).mark.args == (True,)
    with pytest.raises(pytest.skip.Exception):
        machine.skip_without(ability)
    monkeypatch.setenv("HEADRACE_TESTS_REQUIRE", f"mounts {ability}")
    with pytest.raises(pytest.fail.Exception, match=f"names {ability}, but needs"):
        machine.needs(ability)
    with pytest.raises(pytest.fail.Exception, match=f"names {ability}, but needs"):
        machine.skip_without(ability)


def test_what_a_test_finds_missing_itself_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("HEADRACE_TESTS_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception):
        machine.skip_without("disks", is_there=False)
    monkeypatch.setenv("HEADRACE_TESTS_REQUIRE", "disks")
    with pytest.raises(pytest.fail.Exception, match="names disks, but the test needs"):
        machine.skip_without("disks", is_there=False)
