"""What is wrong with each script, and what the doctor is expected to say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
MARK = "# at fault"
FLAG_OF_RANKS = "--nproc-per-node"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training script with one planted bottleneck, or with none.

    Attributes:
        name: The script, without `.py`; of a project, its folder.
        style: How it is written.
        rule: The rule to be ranked first; None: healthy, so nothing serious may be found.
        also: Another rule that is as true.
        why: Why that one is as true.
        flags: Of `headrace run`.
        on_device: What is wrong with it shows on a CUDA device alone; elsewhere it is not run.
        folder: Where the script is, or the folder of the project.
        is_project: It is a folder of several files, whose `train.py` is run.
        arguments: Of the script; `{data}` stands for the folder of its data.
        needs: What it imports beyond what Headrace is developed with, as pip calls it; where that
            is missing it is not run.
        at: The source lines at fault, where no comment marks them; each is there once, in the
            script or in all files of the project.
        within: Parts of names of functions or transforms at fault, where a library has them, or
            any of their lines may be named.
        removals: Arguments with which the bottleneck is gone, by the name of the remedy that
            predicts it, best first; `{n}` stands for the number of workers that it names.
        whole_run: The remedy is predicted for the time of the whole run, with its start.
        ended_after_s: It hangs, and is ended by SIGTERM after these seconds; None: it ends by
            itself.
    """

    name: str
    style: str
    rule: str | None
    also: str = ""
    why: str = ""
    flags: tuple[str, ...] = ()
    on_device: bool = False
    folder: Path = SCRIPTS
    is_project: bool = False
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    removals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    whole_run: bool = False
    ended_after_s: float | None = None

    @property
    def script(self) -> Path:
        """The file that is run."""
        if self.is_project:
            return self.folder / self.name / "train.py"
        return self.folder / f"{self.name}.py"

    @property
    def working_folder(self) -> Path | None:
        """The folder in which it is run, of a project its own; None: any."""
        return self.script.parent if self.is_project else None

    @property
    def files(self) -> tuple[str, ...]:
        """The script, or all files of the project, within `folder`: `project/models/net.py`."""
        paths = sorted(self.script.parent.rglob("*.py")) if self.is_project else [self.script]
        return tuple(path.relative_to(self.folder).as_posix() for path in paths)

    @property
    def lines(self) -> frozenset[str]:
        """The lines at fault, each as file and number: `project/models/net.py:12`; may be empty.

        There are several where one statement or loop has several.
        """
        stripped = {
            f"{file}:{number}": line.strip()
            for file in self.files
            for number, line in enumerate(
                (self.folder / file).read_text(encoding="utf-8").splitlines(), 1
            )
        }
        found = list(stripped.values())
        for wanted in self.at:
            if found.count(wanted) != 1:
                raise ValueError(f"{self.name}: this line must be there once: {wanted}")
        return frozenset(
            place for place, line in stripped.items() if line.endswith(MARK) or line in self.at
        )

    @property
    def ranks(self) -> int:
        """How many processes train."""
        return int(self.flags[self.flags.index(FLAG_OF_RANKS) + 1]) if self.flags else 1

    def script_arguments(self, data: Path | None, removal: tuple[str, ...] = ()) -> list[str]:
        """Return what the script is called with.

        Args:
            data: The folder of its data; None: it needs none.
            removal: More arguments, which remove the bottleneck.
        """
        return [each.replace("{data}", str(data)) for each in (*self.arguments, *removal)]


TWO_RANKS = (FLAG_OF_RANKS, "2")

CASES = (
    Case(name="python_loop_transform", style="plain loop", rule="cpu-bound-worker"),
    Case(name="bilateral_filter", style="argparse, main()", rule="cpu-bound-worker"),
    Case(name="text_rows", style="plain loop, main()", rule="cpu-bound-worker"),
    Case(name="trainer_percentiles", style="Trainer", rule="cpu-bound-worker"),
    Case(name="iterable_words", style="iterable, persistent", rule="cpu-bound-worker"),
    Case(name="headrace_slow_hash", style="headrace.DataLoader", rule="cpu-bound-worker"),
    Case(name="no_workers", style="plain loop", rule="too-few-workers"),
    Case(name="one_worker", style="argparse, persistent", rule="too-few-workers"),
    Case(name="lightning_no_workers", style="Lightning", rule="too-few-workers"),
    Case(name="object_store", style="main(), HTTP", rule="slow-storage"),
    Case(name="remote_pipe", style="iterable, pipe", rule="slow-storage"),
    Case(name="feature_store", style="Trainer, socket", rule="slow-storage"),
    Case(name="small_files", style="main(), files", rule="small-files"),
    Case(name="pad_collate", style="plain loop, main()", rule="slow-collate"),
    Case(name="lightning_mask_collate", style="Lightning", rule="slow-collate"),
    Case(name="numpy_batches", style="plain loop", rule="slow-transfer"),
    Case(name="ragged_graphs", style="main()", rule="slow-transfer"),
    Case(name="shared_archive", style="plain loop", rule="lock-contention"),
    Case(name="locked_cache", style="main(), persistent", rule="lock-contention"),
    Case(name="blas_threads", style="plain loop", rule="oversubscribed-threads"),
    Case(name="matmul_threads", style="iterable, argparse", rule="oversubscribed-threads"),
    Case(name="short_epochs", style="plain loop", rule="workers-restarted"),
    Case(name="spawn_epochs", style="main(), spawn", rule="workers-restarted"),
    Case(name="uneven_batches", style="main()", rule="shallow-prefetch"),
    Case(name="frequent_checkpoints", style="main()", rule="step-outliers"),
    Case(name="random_plots", style="main()", rule="step-outliers"),
    Case(name="ddp_metrics_on_rank_0", style="DDP", rule="slow-rank", flags=TWO_RANKS),
    Case(name="ddp_skewed_shard", style="DDP", rule="slow-rank", flags=TWO_RANKS),
    Case(name="ddp_big_gradients", style="DDP", rule="sync-bound", flags=TWO_RANKS),
    Case(name="history_leak", style="main()", rule="memory-growth"),
    Case(name="slow_index", style="plain loop", rule="slow-start"),
    Case(name="ddp_unequal_shards", style="DDP, join()", rule="unequal-steps", flags=TWO_RANKS),
    Case(name="ddp_starved", style="DDP", rule="cpu-starved-by-ranks", flags=TWO_RANKS),
    Case(
        name="ddp_every_nth_batch",
        style="DDP, no sampler",
        rule="skipped-batches",
        flags=TWO_RANKS,
        removals={"fewer-batches": ("--own",)},
    ),
    Case(
        name="stream_decoded_by_all",
        style="iterable, main()",
        rule="skipped-samples",
        removals={"own-samples": ("--first",)},
    ),
    Case(name="arrays_no_loader", style="no DataLoader", rule="data-wait"),
    Case(name="generator_no_loader", style="no DataLoader, argparse", rule="data-wait"),
    Case(name="queue_no_loader", style="no DataLoader, thread", rule="data-wait"),
    Case(
        name="unpinned_volumes",
        style="main()",
        rule="blocking-copy",
        on_device=True,
        removals={"asynchronous-copies": ("--pinned",), "pinning": ("--pinned",)},
    ),
    Case(
        name="item_by_item",
        style="plain loop",
        rule="device-sync",
        on_device=True,
        removals={"sync": ("--every", "50")},
    ),
    Case(
        name="tiny_batches",
        style="argparse, main()",
        rule="small-batch",
        on_device=True,
        removals={"bigger-batch": ("--batch-size", "16")},
    ),
    Case(name="healthy_plain", style="plain loop, evaluation", rule=None),
    Case(name="healthy_trainer", style="Trainer, accumulation", rule=None),
    Case(name="healthy_lightning", style="Lightning, validation", rule=None),
    Case(name="healthy_ddp", style="DDP", rule=None, flags=TWO_RANKS),
    Case(name="healthy_iterable", style="iterable, accumulation", rule=None),
    Case(name="healthy_no_loader", style="no DataLoader", rule=None),
    Case(name="healthy_headrace", style="headrace.DataLoader", rule=None),
    Case(name="healthy_spawn", style="plain loop, spawn", rule=None),
    Case(name="healthy_tokens", style="memory map, no DataLoader", rule=None),
)
"""Every script."""
