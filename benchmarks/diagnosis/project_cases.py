"""Projects of several files; their truth is here, and not in them.

The first ones are after reports of public bugs, and print no rate, so that what a remedy promises
is not measured. The others print one, and have an argument that removes the bottleneck.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cases import TWO_RANKS, Case

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
        at=(
            "for step, ids in enumerate(islice(loader, done, None), start=done):",
            "loader = DataLoader(",  # which is to get a sampler that begins later
        ),
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
        also="cpu-bound-worker",
        why="on fast cores two files make it 1.03 to 1.05 times as fast, measured",
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
    _case(
        name="apex_glyphs",
        style="apex's prefetcher, torchvision transforms",
        rule="cpu-bound-worker",
        needs=("torchvision", "timm"),
        within=("ElasticTransform", "elastic", "gaussian_blur"),
        removals={"move-code": ("--no-elastic",)},
    ),
    _case(
        name="hf_speech",
        style="Trainer, datasets within datasets",
        rule="too-few-workers",
        also="cpu-bound-worker",
        why="the rank makes its batches itself, which takes its core",
        needs=("transformers", "accelerate", "scipy"),
        removals={"workers": ("--workers", "{n}")},
    ),
    _case(
        name="hook_runner",
        style="runner, hooks, registry, config file",
        rule="step-outliers",
        also="time-outside-model",
        why="each tenth step saves, outside of the model",
        within=("save_checkpoint", "CheckpointHook"),
        removals={"outliers": ("--ckpt-interval", "0"), "outside-model": ("--ckpt-interval", "0")},
    ),
    _case(
        name="lit_tokens",
        style="Lightning, metric in a callback",
        rule="time-outside-model",
        needs=("lightning",),
        within=("edit_distance", "ErrorRateMonitor"),
        removals={"outside-model": ("--ter-every", "0")},
    ),
    _case(
        name="accel_buckets",
        style="Accelerate, partial collate function",
        rule="slow-collate",
        also="cpu-bound-worker",
        why="nearly all of making a batch is in the collate function",
        needs=("accelerate", "datasets"),
        within=("python_bias", "relative_position_bucket", "tokenizer_pad"),
        removals={"move-code": ("--table-bias",)},
    ),
    _case(
        name="triplet_closures",
        style="generators, closures, no class",
        rule="between-epochs",
        within=("mined_triplets",),
        at=("sampler.triplets = mined_triplets(bank, labels, rng, pool)",),
        removals={"between-epochs": ("--mine-every", "0")},
    ),
    _case(
        name="yolo_tiles",
        style="YOLO's endless loader, hyp.yaml",
        rule="slow-sampler",
        within=("RareClassSampler",),
        removals={"sampler": ("--sampling", "keys")},
    ),
    _case(
        name="conf_volumes",
        style="config file, loader with a thread",
        rule="lock-contention",
        arguments=("data.shape=[64,96,96]",),  # smaller ones are read in no time on fast cores
        within=("VolumeStore.read", "RandomCrops.__getitem__"),
        removals={"no-lock": ("store.locking=false",)},
    ),
    _case(
        name="ddp_shapes",
        style="DDP, own decorators",
        rule="slow-rank",
        also="time-outside-model",
        why="what rank 0 does is outside of the model",
        flags=TWO_RANKS,
        within=("PanelWriter", "draw"),
        at=("panels.add(step, images, labels, logits)",),
        removals={"even-ranks": ("--panel-every", "0"), "outside-model": ("--panel-every", "0")},
    ),
    _case(
        name="dataclass_photos",
        style="own Trainer class, dataclass for arguments",
        rule="evaluation",
        within=("Trainer.evaluate", "Trainer._loader", "scaled_views"),
        at=("accuracy = self.evaluate()", "for views, labels in self.val_loader:"),
        removals={"workers": ("--val-workers", "{n}"), "evaluation": ("--eval-every", "2")},
    ),
    _case(
        name="nano_memmap",
        style="nanoGPT, configurator, accumulation",
        rule=None,
        arguments=("config/train_tiny.py",),
    ),
    _case(
        name="multiscale_cycle",
        style="endless loader, mosaic, EMA, tqdm",
        rule=None,
        needs=("timm", "cv2"),
    ),
)
"""Every project."""
