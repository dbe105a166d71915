"""Train with transformers' Trainer on signals that are clipped at their percentiles."""

import tempfile

import numpy as np
import torch
from emulated import NetworkWithLoss
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Signals(Dataset):
    """Long signals, robustly scaled."""

    def __init__(self, count):
        self.count = count
        self.signals = np.random.default_rng(3).normal(size=(16, 60_000)).astype(np.float32)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        signal = self.signals[index % len(self.signals)]
        low, high = np.percentile(signal, (1, 99))  # at fault
        signal = np.clip(signal, low, high)[::60]
        return {"x": torch.from_numpy(signal.copy()), "labels": index % 10}


def main():
    """Train."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=32,
            max_steps=110,
            dataloader_num_workers=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(NetworkWithLoss(10), arguments, train_dataset=Signals(32 * 400)).train()


if __name__ == "__main__":
    main()
