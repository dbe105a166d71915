"""Train with transformers' Trainer on texts in a database, which workers ask row by row."""

import functools
import os
import sqlite3
import tempfile

import torch
from emulated import NetworkWithLoss
from torch.utils.data import Dataset, random_split
from transformers import Trainer, TrainingArguments

torch.set_num_threads(1)

LENGTH = 64


@functools.lru_cache(maxsize=4)
def connection(path, _process):
    """Return a process's own connection to a database."""
    return sqlite3.connect(path)


class Reviews(Dataset):
    """Reviews, as the numbers of their letters, and how many stars came with each."""

    def __init__(self, path, count):
        self.path, self.count = path, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rows = connection(self.path, os.getpid()).execute(
            "SELECT text, stars FROM reviews WHERE id = ?", (index,)
        )
        text, stars = rows.fetchone()
        return {"x": self.encode(text), "labels": stars}

    @staticmethod
    def encode(text):
        """Return the numbers of letters, as many as the network takes."""
        numbers = [ord(letter) - ord("a") for letter in text.lower() if letter.isalpha()]
        return torch.tensor((numbers + [0] * LENGTH)[:LENGTH]) / 26


def write_reviews(path, count):
    """Fill a new database."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE reviews (id INTEGER PRIMARY KEY, text TEXT, stars INTEGER)")
        rows = ((n, f"The wheel turned {n} times. " * 120, n % 5) for n in range(count))
        database.executemany("INSERT INTO reviews VALUES (?, ?, ?)", rows)


def main():
    """Train and evaluate."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/reviews.sqlite"
        write_reviews(path, 4_000)
        train, test = random_split(Reviews(path, 4_000), [3_840, 160])
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=16,
            num_train_epochs=1,
            eval_strategy="epoch",
            dataloader_num_workers=2,
            logging_steps=20,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(NetworkWithLoss(40), arguments, train_dataset=train, eval_dataset=test).train()


if __name__ == "__main__":
    main()
