import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return torch.randn(3, 16, 16), i % 10


class PicturesModule(L.LightningDataModule):
    def __init__(self, batches=280, batch_size=64):
        super().__init__()
        self.batches, self.batch_size = batches, batch_size

    def train_dataloader(self):
        return DataLoader(
            Pictures(self.batches * self.batch_size), self.batch_size, shuffle=True, num_workers=1, persistent_workers=True
        )
