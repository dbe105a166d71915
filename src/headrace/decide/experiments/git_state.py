"""The state of a git checkout that a run was made with, as MLflow's tags have it."""

from __future__ import annotations

import subprocess

from headrace.core.process.process_kill import run_within

_GIT_S = 10.0  # a network disk may be slow


def git_tags(folder: str) -> dict[str, str]:
    """Return commit, branch and whether files differ from it; {} outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    changed = _git(folder, "status", "--porcelain")
    found = {
        "mlflow.source.git.commit": commit,
        "mlflow.source.git.branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "headrace.git_dirty": None if changed is None else str(bool(changed)).lower(),
    }
    return {name: value for name, value in found.items() if value is not None}


def _git(folder: str, *words: str) -> str | None:
    """Return what git prints; None where it fails or is not there."""
    try:
        ended = run_within(["git", "--no-optional-locks", "-C", folder, *words], _GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.decode(errors="replace").strip() if ended.returncode == 0 else None
