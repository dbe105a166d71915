"""Scripts written by someone who did not know the rules; nothing is tuned on them."""

from __future__ import annotations

from pathlib import Path

from cases import Case

UNSEEN_SCRIPTS = Path(__file__).parent / "unseen"


def _case(name: str, style: str, rule: str | None, also: str = "", why: str = "") -> Case:
    return Case(name=name, style=style, rule=rule, also=also, why=why, folder=UNSEEN_SCRIPTS)


UNSEEN = (
    _case("spoken_pitch", "Accelerate, config dataclass", "cpu-bound-worker"),
    _case("customer_history", "own Trainer class, pandas, random_split", "cpu-bound-worker"),
    _case("lidar_sweeps", "Lightning, npy files", "cpu-bound-worker"),
    _case("printed_lines", "argparse, sharded iterable, PIL", "cpu-bound-worker"),
    _case("compressed_scans", "plain, ConcatDataset, Subset", "cpu-bound-worker"),
    _case("two_views", "own class, closures", "too-few-workers"),
    _case("vibration_windows", "config dataclass, memmap", "too-few-workers"),
    _case("streamed_shards", "sharded iterable, tar over HTTP", "slow-storage"),
    _case("profile_service", "BatchSampler, __getitems__, persistent", "slow-storage"),
    _case("molecule_distances", "argparse, partial collate", "slow-collate"),
    _case("clips_of_pictures", "main(), PIL, processor", "slow-transfer"),
    _case("one_licence", "plain loop, semaphore", "lock-contention"),
    _case("recall_callback", "Trainer, callback", "step-outliers"),
    _case("prioritised_replay", "no DataLoader, replay buffer", "data-wait"),
    _case("curriculum_rounds", "main(), Subset, loader a round", "workers-restarted"),
    _case("healthy_masked_words", "own batch sampler, collate method", None),
    _case("healthy_shared_tally", "plain loop, sharded iterable, shared counter", None),
    _case("healthy_views_lightning", "Lightning, ConcatDataset, validation", None),
    _case("healthy_sqlite_trainer", "Trainer, SQLite, evaluation", None),
    _case("healthy_main_process", "argparse, accumulation, no workers", None),
)
"""Every script."""
