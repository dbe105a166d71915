"""Digit recognition with transformers.Trainer."""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tempfile
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments

from speech.corpus import WavCorpus, synthesize
from speech.model import DigitClassifier
from speech.wrappers import AugmentedDataset, CachedDataset, FeatureDataset, SubsetDataset


@dataclass
class Options:
    utterances: int = field(default=480)
    steps: int = field(default=280)
    batch_size: int = field(default=16)
    n_mels: int = field(default=64)
    rir_length: int = field(default=4000, metadata={"help": "cost of the reverberation"})
    workers: int = field(default=0)


def collate(items):
    return {
        "input_features": torch.from_numpy(np.stack([it["input_features"] for it in items])),
        "labels": torch.tensor([it["labels"] for it in items]),
    }


def build_dataset(root, opt):
    corpus = WavCorpus(root)
    held_in = [i for i in range(len(corpus)) if i % 16 != 15]
    raw = CachedDataset(SubsetDataset(corpus, held_in))
    return FeatureDataset(AugmentedDataset(raw, opt.rir_length), n_frames=170, n_mels=opt.n_mels)


def main():
    (opt,) = HfArgumentParser(Options).parse_args_into_dataclasses()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="speech_") as work:
        wavs = os.path.join(work, "wavs")
        os.makedirs(wavs)
        synthesize(wavs, opt.utterances)

        training_args = TrainingArguments(
            output_dir=os.path.join(work, "out"),
            per_device_train_batch_size=opt.batch_size,
            max_steps=opt.steps,
            learning_rate=1e-3,
            save_strategy="no",
            report_to="none",
            logging_steps=50,
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            dataloader_drop_last=True,
            dataloader_pin_memory=False,
            dataloader_num_workers=opt.workers,
            dataloader_persistent_workers=opt.workers > 0,
        )
        trainer = Trainer(
            model=DigitClassifier(opt.n_mels),
            args=training_args,
            data_collator=collate,
            train_dataset=build_dataset(wavs, opt),
        )
        start = time.time()
        trainer.train()
        seconds = time.time() - start
        print(f"rate: {opt.steps * opt.batch_size / seconds:.1f} samples/s")
        print("done")


if __name__ == "__main__":
    main()
