"""The registry of the doctor's rules: a check by each rule's id.

The docstring of a check says what its rule looks for, the threshold and the reason for it. A file
holds one rule, or a few that look at the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.observe.doctor.evidence import REGISTERED, RuleCheck
from headrace.observe.doctor.rules import (  # noqa: F401 - each registers its rules
    accelerator,
    batch_making,
    data_wait,
    memory_growth,
    open_wait,
    sampler,
    skipped_batches,
    step_times,
    wall_time,
    workers,
)

RULES: Mapping[str, RuleCheck] = MappingProxyType(dict(sorted(REGISTERED.items())))
"""Every rule's check by its id."""
