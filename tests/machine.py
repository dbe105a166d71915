"""What some tests need of the machine: skipped where it has not got that, failed where it should.

`.ci/run` names what its machine can do in HEADRACE_TESTS_REQUIRE, as it found out by other means
than the tests' own; then a test that finds it missing fails. Elsewhere, and for what CI does not
have (a CUDA device), such tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from headrace.core.process.mount_namespace import can_bind_mount
from network_hosts import why_not

ABILITIES = {
    "fuse": "FUSE and fusermount3 (package fuse3)",
    "mounts": "mount namespaces",
    "disks": "mounting a small disk, which needs root",
    "networks": "network namespaces, which need root and iproute2",
    "processes": "PID namespaces",
    "git": "git",
    "chromium": "Chromium",
    "node": "Node and a registry of its packages",
    "no-opt-ml": "no /opt/ml of the machine's own",
}
"""What may be required, and what it is."""


def missing(ability: str) -> str | None:
    """Return why tests that need it cannot run here; None: they can. Fails where it is required."""
    why = _why_missing(ability)
    if why is not None and ability in _required():
        pytest.fail(f"HEADRACE_TESTS_REQUIRE names {ability}, but {why}", pytrace=False)
    return why


def needs(*abilities: str) -> pytest.MarkDecorator:
    """Return the mark of tests that need these; see `missing`."""
    whys = [why for why in map(missing, abilities) if why is not None]
    return pytest.mark.skipif(bool(whys), reason="; ".join(whys))


def skip_without(ability: str, *, is_there: bool | None = None) -> None:
    """Skip the running test if it is missing; `is_there`: as it has just found out itself."""
    why = missing(ability)
    if is_there is False:
        why = f"needs {ABILITIES[ability]}"
        if ability in _required():
            pytest.fail(f"HEADRACE_TESTS_REQUIRE names {ability}, but the test {why}")
    if why is not None:
        pytest.skip(why)


def _required() -> set[str]:
    required = set(os.environ.get("HEADRACE_TESTS_REQUIRE", "").split())
    assert required <= set(ABILITIES), f"HEADRACE_TESTS_REQUIRE: {sorted(required)}"
    return required


@cache
def _why_missing(ability: str) -> str | None:
    if ability == "networks":
        return why_not()
    is_there = {
        "fuse": lambda: shutil.which("fusermount3") is not None and Path("/dev/fuse").exists(),
        "mounts": lambda: can_bind_mount("/opt/ml"),
        "disks": lambda: os.geteuid() == 0,
        "processes": lambda: _runs("unshare", "--pid", "--fork", "--mount-proc", "true"),
        "git": lambda: shutil.which("git") is not None,
        "chromium": lambda: shutil.which("chromium") is not None,
        "node": lambda: _runs("npm", "view", "vite", "version", "--fetch-retries=0"),
        "no-opt-ml": lambda: not Path("/opt/ml").exists(),
    }[ability]()
    return None if is_there else f"needs {ABILITIES[ability]}"


def _runs(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return not subprocess.run(command, capture_output=True, check=False, timeout=60).returncode
