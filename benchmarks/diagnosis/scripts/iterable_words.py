"""Train on a stream of sentences that are cut into word pieces on the way."""

import itertools
import random

import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def longest_piece(word, pieces):
    """Return the longest known piece that a word begins with."""
    for end in range(len(word), 0, -1):
        if word[:end] in pieces:  # at fault
            return word[:end]
    return word[0]


def split(text, pieces):
    """Return the numbers of the pieces of a text."""
    numbers = []
    for word in text.split():
        rest = word
        while rest:
            piece = longest_piece(rest, pieces)
            numbers.append(pieces.get(piece, 0))
            rest = rest[len(piece) :]
    return numbers


class Sentences(IterableDataset):
    """An endless stream of sentences as numbers."""

    def __init__(self, count):
        self.count = count
        pairs = ["".join(pair) for pair in itertools.product(ALPHABET, repeat=2)]
        self.pieces = {piece: number for number, piece in enumerate([*ALPHABET, *pairs])}

    def __iter__(self):
        info = get_worker_info()
        source = random.Random(info.id if info else 0)
        for _ in range(self.count // (info.num_workers if info else 1)):
            words = ["".join(source.choices(ALPHABET, k=24)) for _ in range(60)]
            numbers = split(" ".join(words), self.pieces)
            yield torch.tensor(numbers[:200]), source.randrange(10)


if __name__ == "__main__":
    loader = DataLoader(Sentences(2560), batch_size=32, num_workers=2, persistent_workers=True)
    model = Network(step_ms=10).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _epoch in range(2):
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
