"""The rules: a file each, named after the rule's id, with `check(evidence)`.

What a rule looks for, its threshold and the reason for it stand at the head of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.rules import (
    blocking_copy,
    compute_bound,
    cpu_bound_worker,
    cpu_starved_by_ranks,
    data_wait,
    device_sync,
    lock_contention,
    memory_growth,
    oversubscribed_threads,
    shallow_prefetch,
    slow_collate,
    slow_rank,
    slow_start,
    slow_storage,
    slow_transfer,
    small_batch,
    small_files,
    step_outliers,
    sync_bound,
    too_few_workers,
    unequal_steps,
    workers_restarted,
)

Check = Callable[[Evidence], Finding | None]

RULES: Mapping[str, Check] = MappingProxyType(
    {
        module.RULE: module.check
        for module in (
            blocking_copy,
            compute_bound,
            cpu_bound_worker,
            cpu_starved_by_ranks,
            data_wait,
            device_sync,
            lock_contention,
            memory_growth,
            oversubscribed_threads,
            shallow_prefetch,
            slow_collate,
            slow_rank,
            slow_start,
            slow_storage,
            slow_transfer,
            small_batch,
            small_files,
            step_outliers,
            sync_bound,
            too_few_workers,
            unequal_steps,
            workers_restarted,
        )
    }
)
"""Every rule by its id, the file's name with hyphens."""
