"""The registry of the doctor's rules: a check by each rule's id.

The docstring of a check says what its rule looks for, the threshold and the reason for it. A file
holds one rule, or a few that look at the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Finding
from headrace.observe.doctor.rules.accelerator_load import (
    COMPUTE_BOUND,
    SMALL_BATCH,
    SYNC_BOUND,
    check_compute_bound,
    check_small_batch,
    check_sync_bound,
)
from headrace.observe.doctor.rules.batch_making import (
    CPU_BOUND_WORKER,
    LOCK_CONTENTION,
    SLOW_COLLATE,
    check_cpu_bound_worker,
    check_lock_contention,
    check_slow_collate,
)
from headrace.observe.doctor.rules.cpu_starved_by_ranks import (
    CPU_STARVED_BY_RANKS,
    check_cpu_starved_by_ranks,
)
from headrace.observe.doctor.rules.data_wait import DATA_WAIT, check_data_wait
from headrace.observe.doctor.rules.device_waits import (
    BLOCKING_COPY,
    DEVICE_SYNC,
    check_blocking_copy,
    check_device_sync,
)
from headrace.observe.doctor.rules.memory_growth import MEMORY_GROWTH, check_memory_growth
from headrace.observe.doctor.rules.rank_imbalance import (
    SLOW_RANK,
    UNEQUAL_STEPS,
    check_slow_rank,
    check_unequal_steps,
)
from headrace.observe.doctor.rules.slow_start import SLOW_START, check_slow_start
from headrace.observe.doctor.rules.slow_transfer import SLOW_TRANSFER, check_slow_transfer
from headrace.observe.doctor.rules.step_outliers import STEP_OUTLIERS, check_step_outliers
from headrace.observe.doctor.rules.storage import (
    SLOW_STORAGE,
    SMALL_FILES,
    check_slow_storage,
    check_small_files,
)
from headrace.observe.doctor.rules.workers import (
    OVERSUBSCRIBED_THREADS,
    SHALLOW_PREFETCH,
    TOO_FEW_WORKERS,
    WORKERS_RESTARTED,
    check_oversubscribed_threads,
    check_shallow_prefetch,
    check_too_few_workers,
    check_workers_restarted,
)

RuleCheck = Callable[[Evidence], Finding | None]

RULES: Mapping[str, RuleCheck] = MappingProxyType(
    {
        BLOCKING_COPY: check_blocking_copy,
        COMPUTE_BOUND: check_compute_bound,
        CPU_BOUND_WORKER: check_cpu_bound_worker,
        CPU_STARVED_BY_RANKS: check_cpu_starved_by_ranks,
        DATA_WAIT: check_data_wait,
        DEVICE_SYNC: check_device_sync,
        LOCK_CONTENTION: check_lock_contention,
        MEMORY_GROWTH: check_memory_growth,
        OVERSUBSCRIBED_THREADS: check_oversubscribed_threads,
        SHALLOW_PREFETCH: check_shallow_prefetch,
        SLOW_COLLATE: check_slow_collate,
        SLOW_RANK: check_slow_rank,
        SLOW_START: check_slow_start,
        SLOW_STORAGE: check_slow_storage,
        SLOW_TRANSFER: check_slow_transfer,
        SMALL_BATCH: check_small_batch,
        SMALL_FILES: check_small_files,
        STEP_OUTLIERS: check_step_outliers,
        SYNC_BOUND: check_sync_bound,
        TOO_FEW_WORKERS: check_too_few_workers,
        UNEQUAL_STEPS: check_unequal_steps,
        WORKERS_RESTARTED: check_workers_restarted,
    }
)
"""Every rule's check by its id."""
