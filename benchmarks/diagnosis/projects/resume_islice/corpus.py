import random

import torch
from torch.utils.data import Dataset


class Documents(Dataset):
    def __init__(self, count, length=256, vocabulary=4096):
        pick = random.Random(0)
        self.texts = ["".join(pick.choices("abcdefghij klmnop", k=18_000)) for _ in range(64)]
        self.count, self.length, self.vocabulary = count, length, vocabulary

    def __len__(self):
        return self.count

    def encode(self, text):
        state, ids = 1, []
        for character in text:
            state = (state * 31 + ord(character)) % 65521
            ids.append(state % self.vocabulary)
        return ids

    def __getitem__(self, i):
        return torch.tensor(self.encode(self.texts[i % len(self.texts)])[: self.length])
