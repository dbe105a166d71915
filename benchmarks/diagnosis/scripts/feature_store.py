"""Train with transformers' Trainer on features that a service holds."""

import socket
import tempfile

import numpy as np
import torch
from emulated import NetworkWithLoss
from servers import row_store
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Features(Dataset):
    """Rows of a feature store, asked for one at a time over one connection a worker."""

    def __init__(self, port, count):
        self.port, self.count = port, count
        self.connection = None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port))
        self.connection.sendall(b"%d\n" % index)
        row = b""
        while len(row) < 1024:
            row += self.connection.recv(1024 - len(row))  # at fault
        return {"x": torch.from_numpy(np.frombuffer(row, np.uint8) / 255.0), "labels": index % 10}


def main():
    """Train."""
    with row_store(latency_s=0.006) as port, tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            max_steps=70,
            dataloader_num_workers=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(NetworkWithLoss(20), arguments, train_dataset=Features(port, 16 * 80)).train()


if __name__ == "__main__":
    main()
