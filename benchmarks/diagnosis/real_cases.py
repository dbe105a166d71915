"""Scripts in the styles that people publish; their truth is here, and no comment marks it in them.

Nothing is tuned to them: the first score of each is kept in first_scores.json.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cases import TWO_RANKS, Case

_case = partial(Case, folder=Path(__file__).parent / "real")
_VISION = ("torchvision",)

REAL = (
    _case(
        name="imagefolder_v2",
        style="ImageFolder, torchvision v2",
        rule="cpu-bound-worker",
        arguments=("{data}/images", "--epochs", "8"),  # its rate holds the start of the workers
        needs=_VISION,
        within=("ElasticTransform", "elastic"),
        removals={"move-code": ("--elastic", "0")},
    ),
    _case(
        name="timm_train",
        style="timm's train.py",
        rule="too-few-workers",
        arguments=("--data-dir", "{data}/images"),
        needs=(*_VISION, "timm"),
        removals={"workers": ("--workers", "{n}")},
    ),
    _case(
        name="torchvision_reference",
        style="torchvision's references, MetricLogger",
        rule="workers-restarted",
        arguments=("--data-path", "{data}/images"),
        removals={"persistent-workers": ("--persistent-workers",)},
    ),
    _case(
        name="trainer_rare_masks",
        style="Trainer, data collator",
        rule="slow-collate",
        also="cpu-bound-worker",
        why="nearly all of collating is one line of the collator",
        arguments=("--train_file", "{data}/texts/reviews.jsonl"),
        needs=("transformers", "accelerate"),
        at=("counts = [everything.count(token) for token in ids]",),
        removals={"move-code": ("--masked_tokens", "uniform")},
    ),
    _case(
        name="lightning_validation",
        style="Lightning, data module",
        rule="evaluation",
        arguments=("--data-dir", "{data}/images"),
        needs=("lightning",),
        within=("Thumbnails", "val_dataloader"),
        removals={"workers": ("--val-workers", "{n}")},
    ),
    _case(
        name="accelerate_bpe",
        style="Accelerate, gradient accumulation",
        rule="cpu-bound-worker",
        arguments=("--train-file", "{data}/texts/reviews.jsonl"),
        needs=("accelerate",),
        within=("encode", "merge"),
        removals={"move-code": ("--tokenize-first",)},
    ),
    _case(
        name="nanogpt",
        style="nanoGPT, memory map, no DataLoader",
        rule="step-outliers",
        also="evaluation",
        why="without a DataLoader an evaluation is a part of the step that it is in",
        arguments=("--data_dir={data}/tokens",),
        within=("estimate_loss",),
        at=("losses = estimate_loss()",),
        removals={"outliers": ("--eval_interval=0",), "evaluation": ("--eval_interval=40",)},
    ),
    _case(
        name="dcgan",
        style="GAN, two optimizers",
        rule="step-outliers",
        arguments=("--dataroot", "{data}/images/train"),
        within=("save_samples",),
        removals={"outliers": ("--sample-every", "0")},
    ),
    _case(
        name="detection_batches",
        style="detection, lists of targets",
        rule="slow-transfer",
        arguments=("--ann-file", "{data}/instances/instances.json"),
        removals={"tensors": ("--one-tensor",)},
    ),
    _case(
        name="stateful_loader",
        style="StatefulDataLoader",
        rule="cpu-bound-worker",
        arguments=("{data}/images/train",),
        needs=("torchdata",),
        at=(
            "field = np.random.standard_normal(shape)",
            "return ndimage.gaussian_filter(field, sigma=(6, 6, 0))",
        ),
        removals={"move-code": ("--noise", "0")},
    ),
    _case(
        name="ddp_torchrun",
        style="DDP, torchrun, Trainer class",
        rule="slow-rank",
        also="evaluation",
        why="evaluation is what rank 0 is slow with",
        flags=TWO_RANKS,
        within=("validate",),
        at=("self.validate()",),
        removals={"even-ranks": ("--eval-every", "0"), "evaluation": ("--eval-every", "2")},
    ),
    _case(
        name="fsdp_torchrun",
        style="FSDP, torchrun",
        rule="too-few-workers",
        flags=TWO_RANKS,
        arguments=("--tokens", "{data}/tokens/train.bin"),
        removals={"workers": ("--num-workers", "{n}")},
    ),
    _case(
        name="hf_set_transform",
        style="HF datasets, set_transform",
        rule="cpu-bound-worker",
        arguments=("--train_file", "{data}/texts/reviews.jsonl"),
        needs=("datasets",),
        within=("character_ngrams",),
        removals={"move-code": ("--preprocess_once",)},
    ),
    _case(
        name="speech_collate",
        style="speech, features in collate",
        rule="slow-collate",
        arguments=("--manifest", "{data}/speech/manifest.jsonl"),
        within=("log_mel",),
        removals={"move-code": ("--features", "raw")},
    ),
    _case(
        name="tabular_pandas",
        style="table, pandas in __getitem__",
        rule="cpu-bound-worker",
        arguments=("--csv", "{data}/table/customers.csv"),
        at=(
            "row = self.df.iloc[idx]",
            "numbers = row[self.numerical].to_numpy(np.float32)",
            "codes = [self.categories[name][row[name]] for name in self.categorical]",
        ),
        removals={"move-code": ("--as-arrays",)},
    ),
    _case(
        name="wds_stream",
        style="stream of tar shards",
        rule="unequal-workers",
        arguments=("--train-data", "{data}/shards/all-000000.tar"),
        removals={"equal-shares": ("--train-data", "{data}/shards/part-{000000..000003}.tar")},
    ),
    _case(
        name="bucket_batches",
        style="batches of like length, own sampler",
        rule="slow-sampler",
        arguments=("--text", "{data}/texts/reviews.jsonl"),
        within=("LengthBuckets",),
        removals={"sampler": ("--plan-once",)},
    ),
    _case(
        name="segmentation_joint",
        style="segmentation, joint transforms",
        rule="cpu-bound-worker",
        arguments=("--data", "{data}/masks"),
        within=("GridDistortion",),
        removals={"move-code": ("--distortion", "0")},
    ),
    _case(
        name="simclr",
        style="contrastive, two views",
        rule="too-few-workers",
        arguments=("-data", "{data}/images/train"),
        removals={"workers": ("--workers", "{n}")},
    ),
    _case(
        name="evaluate_each_epoch",
        style="metric learning, evaluation each epoch",
        rule="evaluation",
        within=("evaluate", "average_precision"),
        removals={"evaluation": ("--eval-freq", "2")},
    ),
    _case(
        name="save_each_epoch",
        style="checkpoint each epoch, and the best",
        rule="between-epochs",
        at=(
            "torch.save(state, filename)",
            'shutil.copyfile(filename, Path(folder) / "model_best.pth.tar")',
        ),
        within=("save_checkpoint",),
        removals={"between-epochs": ("--save-freq", "0")},
    ),
    _case(
        name="resume_skip",
        style="resumed by passing over batches",
        rule="passed-over-batches",
        arguments=("--data", "{data}/images/train"),
        at=("loader = DataLoader(", "for images, labels in loader:", "continue"),
        removals={"later-start": ("--seek",)},
        whole_run=True,
    ),
    _case(
        name="rl_loop",
        style="DQN, environment in the loop",
        rule="data-wait",
        within=("CartPole",),
        at=("next_state, reward, done = env.step(action)",),
        removals={"move-code": ("--substeps", "1")},
    ),
    _case(
        name="extract_features",
        style="features of images, no optimizer",
        rule="cpu-bound-worker",
        arguments=("{data}/images/train",),
        at=("image = image.filter(ImageFilter.MedianFilter(self.median))",),
        removals={"move-code": ("--median", "0")},
    ),
    _case(
        name="healthy_imagenet_meters",
        style="pytorch/examples' imagenet, meters",
        rule=None,
        arguments=("{data}/images",),
    ),
    _case(
        name="healthy_char_gpt",
        style="character model on the CPU, no DataLoader",
        rule=None,
        arguments=("--text", "{data}/texts/reviews.jsonl"),
    ),
    _case(
        name="healthy_accumulation",
        style="Accelerate, gradient accumulation",
        rule=None,
        needs=("accelerate",),
    ),
    _case(
        name="healthy_inference",
        style="embeddings of a corpus, no optimizer",
        rule=None,
        arguments=("{data}/texts/reviews.jsonl",),
    ),
    _case(
        name="healthy_ddp_autoencoder", style="DDP, masked autoencoder", rule=None, flags=TWO_RANKS
    ),
)
"""Every script."""
