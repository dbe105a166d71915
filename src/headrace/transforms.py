"""The transforms under their public name: `from headrace.transforms import RandomResizedCrop`."""

from __future__ import annotations

from headrace.data.transforms import *  # noqa: F403 - its __all__ is the list of public transforms
from headrace.data.transforms import __all__  # noqa: F401 - so that this module's list is the same
