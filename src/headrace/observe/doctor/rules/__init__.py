"""The registry of the doctor's rules: a check by each rule's id.

The docstring of a check says what its rule looks for, the threshold and the reason for it. A file
holds one rule, or a few that look at the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.observe.doctor.rule import REGISTERED, RuleCheck
from headrace.observe.doctor.rules import (  # noqa: F401 - each registers its rules
    accelerator_load,
    batch_making,
    cpu_starved_by_ranks,
    data_wait,
    device_waits,
    memory_growth,
    rank_imbalance,
    slow_start,
    slow_transfer,
    step_outliers,
    storage,
    workers,
)

RULES: Mapping[str, RuleCheck] = MappingProxyType(dict(sorted(REGISTERED.items())))
"""Every rule's check by its id."""
