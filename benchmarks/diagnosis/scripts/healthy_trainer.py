"""Train with transformers' Trainer on a data set in memory."""

import tempfile

import torch
from emulated import NetworkWithLoss
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Rows(Dataset):
    """Rows of numbers."""

    def __init__(self, count):
        self.rows = torch.randn(count, 64)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"x": self.rows[index], "labels": index % 10}


def main():
    """Train."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            num_train_epochs=1,
            gradient_accumulation_steps=2,
            dataloader_num_workers=2,
            logging_steps=25,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(NetworkWithLoss(35), arguments, train_dataset=Rows(1600)).train()


if __name__ == "__main__":
    main()
