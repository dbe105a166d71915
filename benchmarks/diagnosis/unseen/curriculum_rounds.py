"""Train in short rounds on ever longer sentences; each round makes a loader of its own."""

import random
import string

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

torch.set_num_threads(1)

VOCABULARY = {}


def load_vocabulary(_worker):
    """Number the words of a dictionary."""
    source = random.Random(0)
    for number in range(150_000):
        VOCABULARY["".join(source.choices(string.ascii_lowercase, k=5))] = number


class Sentences(Dataset):
    """Sentences, the shortest first."""

    def __init__(self, count):
        source = random.Random(1)
        self.sentences = [
            ["".join(source.choices(string.ascii_lowercase, k=5)) for _ in range(4 + number // 100)]
            for number in range(count)
        ]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        numbers = [VOCABULARY.get(word, 0) for word in self.sentences[index]]
        tokens = torch.zeros(64)
        tokens[: len(numbers)] = torch.tensor(numbers[:64]) / 150_000
        return tokens, len(numbers) % 10


def train_round(model, optimizer, sentences):
    """Train once on some sentences and return the mean loss."""
    loader = DataLoader(
        sentences, batch_size=16, shuffle=True, num_workers=2, worker_init_fn=load_vocabulary
    )
    losses = []
    for tokens, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens.to(DEVICE)), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def main():
    """Train all rounds."""
    data = Sentences(2_400)
    model = Network(step_ms=20).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(15):
        hardest = 160 * (number + 1)
        loss = train_round(model, optimizer, Subset(data, range(hardest - 160, hardest)))
        print(f"round {number}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
