"""Source locations: the user's line that led to a call, and files of libraries."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = f"{Path(__file__).parents[1]}/"
"""The folder of this package."""
SITECUSTOMIZE_DIR = f"{PACKAGE}bootstrap/pythonpath"
"""First entry of PYTHONPATH: its sitecustomize prepares the processes of a job."""
SMDDP_STAND_IN_DIR = f"{PACKAGE}bootstrap/smddp"
"""Last entry of a script's path on SageMaker: a stand-in of its library smdistributed."""
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d?[^/]*/|^<")


def is_library(file: str) -> bool:
    """Whether a source file belongs to Python, an installed package or Headrace."""
    return file.startswith(PACKAGE) or _LIBRARY.search(file) is not None


def script_location() -> tuple[str, int]:
    """Return file and line of the script's code that led here, else a library's, else ("", 0).

    Frames of torch's loaders and of Headrace are skipped.
    """
    frame, found = sys._getframe(1), ("", 0)  # noqa: SLF001 - inspect.stack reads source files
    while True:
        file = frame.f_code.co_filename
        if not any(part in file for part in (PACKAGE, "torch/utils/data", "<frozen")):
            if not is_library(file):
                return file, frame.f_lineno
            found = found if found[0] else (file, frame.f_lineno)
        if frame.f_back is None:
            return found
        frame = frame.f_back
