import argparse
import time

import numpy as np
import pandas as pd
import torch
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class ChurnDataset(Dataset):
    def __init__(self, frame, target="left", *, as_arrays=False):
        self.df = frame
        self.target = target
        self.categorical = [name for name in frame if name.startswith("region")]
        self.numerical = [name for name in frame if name not in self.categorical and name != target]
        self.categories = {
            name: {value: code for code, value in enumerate(sorted(frame[name].unique()))}
            for name in self.categorical
        }
        self.arrays = self.encode_all() if as_arrays else None

    def encode_all(self):
        codes = np.stack(
            [self.df[name].map(self.categories[name]).to_numpy() for name in self.categorical],
            axis=1,
        )
        return (
            self.df[self.numerical].to_numpy(np.float32),
            codes.astype(np.int64),
            self.df[self.target].to_numpy(np.float32),
        )

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        if self.arrays is not None:
            numbers, codes, label = (array[idx] for array in self.arrays)
            return torch.from_numpy(numbers), torch.from_numpy(codes), torch.tensor(label)
        row = self.df.iloc[idx]
        numbers = row[self.numerical].to_numpy(np.float32)
        codes = [self.categories[name][row[name]] for name in self.categorical]
        label = np.float32(row[self.target])
        return torch.from_numpy(numbers), torch.tensor(codes), torch.tensor(label)


class TabularModel(nn.Module):
    def __init__(self, numbers, cardinalities, width=8):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in cardinalities)
        self.head = nn.Sequential(
            nn.Linear(numbers + width * len(cardinalities), 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, numbers, codes):
        embedded = [layer(codes[:, i]) for i, layer in enumerate(self.embeddings)]
        return self.head(torch.cat([numbers, *embedded], dim=1)).squeeze(1)


def fit(model, loader, epochs, device):
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tic = time.time()
    for epoch in range(1, epochs + 1):
        losses = []
        for numbers, codes, label in loader:
            optimizer.zero_grad()
            loss = criterion(model(numbers.to(device), codes.to(device)), label.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"Epoch {epoch}/{epochs} loss: {np.mean(losses):.4f}")
    return epochs * len(loader.dataset) / (time.time() - tic)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv", required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--as-arrays", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = ChurnDataset(pd.read_csv(args.csv), as_arrays=args.as_arrays)
    train_set, _ = random_split(dataset, [9600, len(dataset) - 9600])
    train_loader = DataLoader(
        train_set, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True
    )
    cardinalities = [len(values) for values in dataset.categories.values()]
    tabular = TabularModel(len(dataset.numerical), cardinalities)
    net = Accelerated(tabular, step_ms=10).to(DEVICE)
    rows_per_second = fit(net, train_loader, args.epochs, DEVICE)
    print(f"Finished: {rows_per_second:.0f} rows/s")
