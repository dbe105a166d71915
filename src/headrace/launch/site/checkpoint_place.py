"""Another place at which a script of SageMaker's finds its checkpoints: `--checkpoint-local-path`.

Its folder of checkpoints is seen there, too, whatever the place is on this machine, as /opt/ml is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from headrace.contracts.sagemaker_folders import USUAL_BASE, SageMakerFolders
from headrace.core.errors import UsageError

FLAG = "--checkpoint-local-path"
_USUAL = SageMakerFolders().checkpoints
_TAKEN = ("code", "input", "model", "output")


def check_place(text: str, contracts: Sequence[str], said: str) -> str | None:
    """Return the place as a normal path; None: the contract has checkpoints there anyway.

    Args:
        text: The place.
        contracts: Those of the job.
        said: By what name it was told.

    Raises:
        UsageError: No script could find checkpoints there.
    """
    if not any(each.startswith("sagemaker") for each in contracts):
        raise UsageError(
            f"{said} {text}: it is SageMaker's. Leave it out, or add the contract sagemaker; other "
            "scripts are told of their checkpoints by HEADRACE_CHECKPOINT_DIR, or by "
            "AIP_CHECKPOINT_DIR."
        )
    if not text.startswith("/"):
        raise UsageError(f"{said} {text}: it begins with /, such as /opt/ml/checkpoints.")
    place = PurePosixPath(os.path.normpath(f"/{text.lstrip('/')}"))
    if place.is_relative_to(_USUAL):
        return None
    base = PurePosixPath(USUAL_BASE)
    if base.is_relative_to(place) or (
        place.is_relative_to(base) and place.relative_to(base).parts[0] in _TAKEN
    ):
        raise UsageError(
            f"{said} {text}: the contract has other things there. Take a folder apart, such as "
            f"{_USUAL}."
        )
    return str(place)


def make_place(place: str, base: Path, *, may_place: bool) -> None:
    """Have a place be there that checkpoints can be seen at.

    Args:
        place: As `check_place` returned it.
        base: What is /opt/ml to the script.
        may_place: Whether a process of this host may have a view of files of its own.

    Raises:
        UsageError: They cannot be seen there, or would hide what is there.
    """
    if not may_place:
        raise UsageError(
            f"{FLAG} {place}: a process of this host may mount nothing, or code or data lie in "
            f"{USUAL_BASE}, so checkpoints cannot be seen there. Leave it out, and have the script "
            "write to the folder that HEADRACE_CHECKPOINT_DIR names (with --checkpoint-uri)."
        )
    inside = PurePosixPath(place)
    if inside.is_relative_to(USUAL_BASE):
        folder = base / inside.relative_to(USUAL_BASE)
    else:
        folder = Path(place)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{FLAG} {place}: there is something already, which the script would not see. "
                "Name a folder that is empty, or does not exist."
            )
        above = next(each for each in folder.parents if each.exists())
        # A folder that may not be written is placed anew, with all it holds; so is the root.
        if above != Path("/") and os.access(above, os.W_OK):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{FLAG} {place}: checkpoints cannot be seen there: {error.strerror}. Take another."
        ) from error
