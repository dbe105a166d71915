"""Whose code a source file is: the user's, or a library's."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = f"{Path(__file__).parents[1]}/"
"""The folder of this package."""
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d?[^/]*/|^<")


def is_library(file: str) -> bool:
    """Whether a source file belongs to Python, an installed package or Headrace."""
    return file.startswith(PACKAGE) or _LIBRARY.search(file) is not None
