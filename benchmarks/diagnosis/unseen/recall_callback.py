"""Train a recommender with transformers' Trainer; a callback measures its recall now and then."""

import tempfile

import numpy as np
import torch
from emulated import NetworkWithLoss
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)


class Interactions(Dataset):
    """Users' vectors with an item that they took; others are drawn to tell it from."""

    def __init__(self, count, items):
        self.users = torch.randn(count, 56)
        self.items = items

    def __len__(self):
        return len(self.users)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        others = torch.randint(0, self.items, (8,), generator=generator) / self.items
        return {"x": torch.cat([self.users[index], others]), "labels": index % 10}


class Recall(TrainerCallback):
    """Ranks all items for some users every few steps."""

    def __init__(self, users, items, every, best=50):
        random = np.random.default_rng(1)
        self.users = random.normal(size=(users, 16)).astype(np.float32)
        self.items = random.normal(size=(items, 16)).astype(np.float32)
        self.every, self.best = every, best
        self.history = []

    def on_step_end(self, _args, state, _control, **_):
        """Measure, if it is time."""
        if state.global_step % self.every == 0:
            self.history.append(self.measure(state.global_step))

    def measure(self, step):
        """Return the share of users with the item that they took among the best."""
        hits = 0
        for number, user in enumerate(self.users):
            scores = self.items @ user
            ranked = np.argsort(-scores)  # at fault
            hits += (number + step) % len(self.items) in ranked[: self.best]
        return hits / len(self.users)


def main():
    """Train."""
    items = 40_000
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=32,
            max_steps=180,
            dataloader_num_workers=2,
            learning_rate=1e-3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        recall = Recall(users=150, items=items, every=20)
        Trainer(
            NetworkWithLoss(25),
            arguments,
            train_dataset=Interactions(32 * 200, items),
            callbacks=[recall],
        ).train()
    print(f"recall {recall.history[-1]:.2%}")


if __name__ == "__main__":
    main()
