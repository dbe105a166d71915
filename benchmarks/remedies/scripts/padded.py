"""Sequences of many lengths, padded by loops in the collate function; with no effort, by torch."""

import torch
from options import loader_for, options, train
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset


class Sequences(Dataset):
    """Sequences of 400 to 900 numbers."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((400 + index * 37 % 500,), float(index % 7)), index % 10


def pad(samples):
    """Pad all sequences to the longest, number by number."""
    longest = max(len(sequence) for sequence, _ in samples)
    rows = []
    for sequence, _ in samples:
        row = [value.item() for value in sequence]
        rows.append(row + [0.0] * (longest - len(row)))
    return torch.tensor(rows)[:, :400], torch.tensor([label for _, label in samples])


def pad_at_once(samples):
    """The same by torch's own function."""
    rows = pad_sequence([sequence for sequence, _ in samples], batch_first=True)
    return rows[:, :400], torch.tensor([label for _, label in samples])


chosen = options(batch_size=48)
data = Sequences(chosen.steps * chosen.batch_size)
collate = pad if chosen.effort else pad_at_once
train(loader_for(data, chosen, collate_fn=collate), chosen)
