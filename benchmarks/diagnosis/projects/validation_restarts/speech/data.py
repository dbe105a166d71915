import torch
from torch.utils.data import DataLoader, Dataset

from . import lexicon


class Utterances(Dataset):
    def __init__(self, count, scored=False):
        self.count = count
        self.scored = scored

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        frames = torch.randn(50, 40)
        reference = lexicon.lookup(i) if self.scored else (0, 0, 0)
        return frames, torch.tensor(reference, dtype=torch.float32)


def train_loader(batch):
    return DataLoader(Utterances(24 * batch), batch, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True)


def dev_loader(batch):
    return DataLoader(Utterances(8 * batch, scored=True), batch, num_workers=2, worker_init_fn=lexicon.attach)
