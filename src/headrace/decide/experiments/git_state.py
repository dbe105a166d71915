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
    return {
        "mlflow.source.git.commit": commit,
        "mlflow.source.git.branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "headrace.git_dirty": str(bool(_git(folder, "status", "--porcelain"))).lower(),
    }


def _git(folder: str, *words: str) -> str:
    """Return what git prints; "" where it fails or is not there."""
    try:
        ended = run_within(["git", "-C", folder, *words], _GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.decode(errors="replace").strip() if ended.returncode == 0 else ""
