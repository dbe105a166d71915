"""Train a masked language model on sentences of like length, masked token by token."""

import itertools
import random

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

torch.set_num_threads(1)

PAD, MASK, WORDS = 0, 1, 5_000


class ByLength(Sampler):
    """Batches of sentences of about the same length, in random order."""

    def __init__(self, lengths, batch_size, seed=0):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        self.random = random.Random(seed)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.random.sample(self.batches, len(self.batches)))


class Sentences(Dataset):
    """Sentences as lists of the numbers of words."""

    def __init__(self, count):
        source = random.Random(3)
        self.sentences = [
            [source.randrange(2, WORDS) for _ in range(source.randrange(300, 900))]
            for _ in range(count)
        ]
        self.lengths = [len(sentence) for sentence in self.sentences]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return self.sentences[index]

    def collate(self, sentences):
        """Return masked, padded sentences and the first hidden word of each."""
        longest = max(map(len, sentences))
        rows, hidden = [], []
        for sentence in sentences:
            row, first = [], 0
            for word in sentence:
                if random.random() < 0.15:
                    first = first or word
                    row.append(MASK)
                else:
                    row.append(word)
            rows.append(row + [PAD] * (longest - len(row)))
            hidden.append(first % 10)
        return torch.tensor(rows), torch.tensor(hidden)


def main():
    """Train five epochs."""
    data = Sentences(3_200)
    loader = DataLoader(
        data,
        batch_sampler=ByLength(data.lengths, batch_size=64),
        num_workers=2,
        persistent_workers=True,
        collate_fn=data.collate,
    )
    model = Network(step_ms=35, features=40).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    mean = None
    batches = itertools.chain.from_iterable(loader for _epoch in range(5))
    for step, (tokens, hidden) in enumerate(batches):
        loss = nn.functional.cross_entropy(model(tokens.to(DEVICE) / WORDS), hidden.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()
        if step % 10 == 0:
            print(f"step {step}: loss {mean:.3f}, length {tokens.shape[1]}")


if __name__ == "__main__":
    main()
