"""Train on spectra that are projected by NumPy, whose BLAS takes as many threads as there are."""

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    """Spectra, projected."""

    def __init__(self):
        generator = np.random.default_rng(7)
        self.spectra = generator.normal(size=(8, 200, 1024)).astype(np.float32)
        self.basis = generator.normal(size=(1024, 1024)).astype(np.float32)

    def __len__(self):
        return 800

    def __getitem__(self, index):
        projected = self.spectra[index % 8] @ self.basis
        return torch.from_numpy(projected[0] / 32), index % 10


if __name__ == "__main__":
    loader = DataLoader(Spectra(), batch_size=8, shuffle=True, num_workers=4)
    model = Network(step_ms=12).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for spectra, labels in loader:
        loss = nn.functional.cross_entropy(model(spectra.to(DEVICE)), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
