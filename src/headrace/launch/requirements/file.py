"""What a job's hosts install: the requirements.txt beside its code, or the file that is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.errors import UsageError

if TYPE_CHECKING:
    from headrace.launch.flags import TorchrunJob

LEAVE_OUT = "`--requirements none` leaves the file out."
LONGEST_S = 1800.0
"""What an install may take: something large may have to be built."""
_USUAL = "requirements.txt"
_NONE = "none"


def code_folder(job: TorchrunJob) -> Path:
    """Return the folder of a job's code; for a module the working one, as its own is not known."""
    if job.contract.source_dir is not None:
        return Path(job.contract.source_dir)
    args = job.args
    return Path() if args.module or args.no_python else Path(args.training_script).parent


def find_requirements(told: str | None, beside: Path | None) -> Path | None:
    """Return the file that is installed; None: nothing is.

    Args:
        told: The file, or `none`; None: the one beside the code, where there is one.
        beside: The folder of the code; None: nothing is looked for.

    Raises:
        UsageError: There is no such file.
    """
    if told == _NONE:
        return None
    if told is None:
        is_there = beside is not None and (beside / _USUAL).is_file()
        return _plain(beside / _USUAL) if beside is not None and is_there else None
    if not Path(told).is_file():
        raise UsageError(
            f"--requirements {told}: there is no such file in {Path.cwd()}. Name one, or `none`."
        )
    return _plain(Path(told))


def _plain(file: Path) -> Path:
    # Links stay: what they lead to goes along in their place.
    return Path(os.path.normpath(file.absolute()))
