"""The rules: a file each, named after the rule's id, with `check(evidence)`.

What a rule looks for, its threshold and the reason for it stand at the head of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.model import Finding
from headrace.observe.doctor.rules.blocking_copy import RULE as BLOCKING_COPY
from headrace.observe.doctor.rules.blocking_copy import check as check_blocking_copy
from headrace.observe.doctor.rules.compute_bound import RULE as COMPUTE_BOUND
from headrace.observe.doctor.rules.compute_bound import check as check_compute_bound
from headrace.observe.doctor.rules.cpu_bound_worker import RULE as CPU_BOUND_WORKER
from headrace.observe.doctor.rules.cpu_bound_worker import check as check_cpu_bound_worker
from headrace.observe.doctor.rules.cpu_starved_by_ranks import RULE as CPU_STARVED_BY_RANKS
from headrace.observe.doctor.rules.cpu_starved_by_ranks import check as check_cpu_starved_by_ranks
from headrace.observe.doctor.rules.data_wait import RULE as DATA_WAIT
from headrace.observe.doctor.rules.data_wait import check as check_data_wait
from headrace.observe.doctor.rules.device_sync import RULE as DEVICE_SYNC
from headrace.observe.doctor.rules.device_sync import check as check_device_sync
from headrace.observe.doctor.rules.lock_contention import RULE as LOCK_CONTENTION
from headrace.observe.doctor.rules.lock_contention import check as check_lock_contention
from headrace.observe.doctor.rules.memory_growth import RULE as MEMORY_GROWTH
from headrace.observe.doctor.rules.memory_growth import check as check_memory_growth
from headrace.observe.doctor.rules.oversubscribed_threads import RULE as OVERSUBSCRIBED_THREADS
from headrace.observe.doctor.rules.oversubscribed_threads import (
    check as check_oversubscribed_threads,
)
from headrace.observe.doctor.rules.shallow_prefetch import RULE as SHALLOW_PREFETCH
from headrace.observe.doctor.rules.shallow_prefetch import check as check_shallow_prefetch
from headrace.observe.doctor.rules.slow_collate import RULE as SLOW_COLLATE
from headrace.observe.doctor.rules.slow_collate import check as check_slow_collate
from headrace.observe.doctor.rules.slow_rank import RULE as SLOW_RANK
from headrace.observe.doctor.rules.slow_rank import check as check_slow_rank
from headrace.observe.doctor.rules.slow_start import RULE as SLOW_START
from headrace.observe.doctor.rules.slow_start import check as check_slow_start
from headrace.observe.doctor.rules.slow_storage import RULE as SLOW_STORAGE
from headrace.observe.doctor.rules.slow_storage import check as check_slow_storage
from headrace.observe.doctor.rules.slow_transfer import RULE as SLOW_TRANSFER
from headrace.observe.doctor.rules.slow_transfer import check as check_slow_transfer
from headrace.observe.doctor.rules.small_batch import RULE as SMALL_BATCH
from headrace.observe.doctor.rules.small_batch import check as check_small_batch
from headrace.observe.doctor.rules.small_files import RULE as SMALL_FILES
from headrace.observe.doctor.rules.small_files import check as check_small_files
from headrace.observe.doctor.rules.step_outliers import RULE as STEP_OUTLIERS
from headrace.observe.doctor.rules.step_outliers import check as check_step_outliers
from headrace.observe.doctor.rules.sync_bound import RULE as SYNC_BOUND
from headrace.observe.doctor.rules.sync_bound import check as check_sync_bound
from headrace.observe.doctor.rules.too_few_workers import RULE as TOO_FEW_WORKERS
from headrace.observe.doctor.rules.too_few_workers import check as check_too_few_workers
from headrace.observe.doctor.rules.unequal_steps import RULE as UNEQUAL_STEPS
from headrace.observe.doctor.rules.unequal_steps import check as check_unequal_steps
from headrace.observe.doctor.rules.workers_restarted import RULE as WORKERS_RESTARTED
from headrace.observe.doctor.rules.workers_restarted import check as check_workers_restarted

Check = Callable[[Evidence], Finding | None]

RULES: Mapping[str, Check] = MappingProxyType(
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
"""Every rule by its id, the file's name with hyphens."""
