"""Projects of several files, after reports of public bugs; their truth is here, and not in them.

They print no rate, so what a remedy promises is not measured.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cases import Case

_case = partial(Case, folder=Path(__file__).parent / "projects", is_project=True)

PROJECTS = (
    _case(
        name="site-packages-fork",  # a path like that of an installed library
        style="fork, lib/python, loader with a thread",
        rule="cpu-bound-worker",
        within=("FeatureStore._recency_weighted",),
    ),
    _case(
        name="timm_augmix",
        style="timm's loader and transforms alone",
        rule="cpu-bound-worker",
        needs=("torchvision", "timm"),
        at=("loader_train = create_loader(",),
        within=("AugMixAugment", "AugmentOp", "auto_augment.py"),  # and the functions in that file
    ),
    _case(
        name="validation_restarts",
        style="speech toolkit, stages",
        rule="evaluation",
        at=(
            (
                "return DataLoader(Utterances(8 * batch, scored=True), batch, num_workers=2, "
                "worker_init_fn=lexicon.attach)"
            ),
        ),
        within=("build", "pronounce"),
    ),
    _case(
        name="background_compaction",
        style="main(), programs of its own beside it",
        rule="data-wait",  # it says that other programs take the cores
    ),
    _case(
        name="resume_islice",
        style="Accelerate, resumed by islice",
        rule="passed-over-batches",
        needs=("accelerate",),
        at=("for step, ids in enumerate(islice(loader, done, None), start=done):",),
    ),
    _case(
        name="pseudo_labels_rle",
        style="pseudo labels, own predictor, no optimizer",
        rule="time-outside-model",
        within=("run_lengths",),
    ),
    _case(
        name="reader_thread_died",
        style="sharded iterable, reader with a thread",
        rule="open-wait",
        at=("record = self._buffer.get()",),
        ended_after_s=45.0,
    ),
    _case(
        name="fixmatch_sampler",
        style="FixMatch, two loaders, own sampler",
        rule="slow-sampler",
        within=("AdaptiveBalance._draw",),
    ),
    _case(
        name="hf_stream_one_file",
        style="HF datasets, streaming",
        rule="unequal-workers",
        needs=("datasets",),
    ),
    _case(
        name="trainer_bpe_collator",
        style="Trainer, collator with a tokenizer",
        rule="slow-collate",
        also="cpu-bound-worker",
        why="all of making a batch is in the collator",
        needs=("transformers", "accelerate"),
        within=("BytePairs._merge",),
    ),
    _case(
        name="lightning_gallery",
        style="Lightning, callback, accumulation",
        rule="step-outliers",
        needs=("lightning",),
        within=("Gallery",),
    ),
    _case(
        name="rounds_lazy_index",
        style="curriculum, loader a round, lazy index",
        rule="workers-restarted",
        also="data-wait",
        why="the new workers of each round make its first batch late, as each parses the index",
        within=("Index._parse", "Shelf.index"),
    ),
    _case(
        name="healthy_tabular",
        style="table in memory, on the CPU, no workers",
        rule=None,
    ),
    _case(
        name="healthy_stateful_speech",
        style="StatefulDataLoader, accumulation",
        rule=None,
        needs=("torchdata",),
    ),
)
"""Every project."""
