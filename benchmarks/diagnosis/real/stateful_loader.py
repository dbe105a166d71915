import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from emulated import Accelerated
from PIL import Image
from scipy import ndimage
from torch import nn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader


class AugmentedImages(Dataset):
    def __init__(self, root, noise):
        self.files = sorted(Path(root).glob("*/*.jpg"))
        self.noise = noise

    def __len__(self):
        return len(self.files)

    def smooth_noise(self, shape):
        field = np.random.standard_normal(shape)
        return ndimage.gaussian_filter(field, sigma=(6, 6, 0))

    def __getitem__(self, index):
        with Image.open(self.files[index]) as image:
            image.draft("RGB", (128, 128))
            pixels = np.asarray(image.convert("RGB").resize((128, 96)), dtype=np.float32) / 255
        if self.noise:
            pixels = pixels + self.noise * self.smooth_noise(pixels.shape)
        label = int(self.files[index].parent.name.rsplit("_", 1)[1])
        return torch.as_tensor(pixels, dtype=torch.float32).permute(2, 0, 1), label


class TrainState:
    def __init__(self, model, optimizer, loader, folder):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.path = Path(folder) / "state.pt"
        self.step = 0

    def save(self):
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "loader": self.loader.state_dict(),
                "step": self.step,
            },
            self.path,
        )


def train(state, epochs, device, save_every):
    loss_fn = nn.CrossEntropyLoss()
    state.model.train()
    for epoch in range(epochs):
        running = 0.0
        for images, labels in state.loader:
            state.optimizer.zero_grad(set_to_none=True)
            loss = loss_fn(state.model(images.to(device)), labels.to(device))
            loss.backward()
            state.optimizer.step()
            running += loss.item()
            state.step += 1
            if state.step % save_every == 0:
                state.save()
        print(f"epoch {epoch} step {state.step} loss {running / len(state.loader):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--save-every", type=int, default=25)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = StatefulDataLoader(
        AugmentedImages(args.data, args.noise),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        drop_last=True,
    )
    net = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(144, 10))
    model = Accelerated(net, step_ms=15).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        state = TrainState(model, optimizer, loader, folder)
        began = time.monotonic()
        train(state, args.epochs, device, args.save_every)
        rate = state.step * args.batch_size / (time.monotonic() - began)
        print(f"done, {rate:.1f} images/s")


if __name__ == "__main__":
    main()
