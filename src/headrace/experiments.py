"""Experiments under their public name: `from headrace import experiments`."""

from __future__ import annotations

from headrace.decide.experiments.session import *  # noqa: F403 - its __all__ is the list of names
from headrace.decide.experiments.session import __all__  # noqa: F401 - so that this list is the same
