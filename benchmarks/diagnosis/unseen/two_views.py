"""Learn from two different views of each photograph, without labels."""

import random

import cv2
import torch
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
cv2.setNumThreads(0)


def augmentation(size, blur):
    """Return a function that makes a view of a photograph."""

    def crop(image):
        """Return a random square of it, scaled."""
        height, width = image.shape[:2]
        side = random.randint(height // 2, height)
        top, left = random.randint(0, height - side), random.randint(0, width - side)
        part = image[top : top + side, left : left + side]
        return cv2.resize(part, (size, size), interpolation=cv2.INTER_LINEAR)

    def colours(image):
        """Return it in slightly other colours."""
        shift = (random.randint(0, 20), random.randint(0, 40), 0, 0)
        shifted = cv2.add(cv2.cvtColor(image, cv2.COLOR_BGR2HSV), shift)
        return cv2.cvtColor(shifted, cv2.COLOR_HSV2BGR)

    def view(image):
        """Return a view of it."""
        image = colours(crop(image))
        if random.random() < 0.5:
            image = cv2.flip(image, 1)
        image = cv2.GaussianBlur(image, (blur, blur), 0)
        return torch.from_numpy(image).permute(2, 0, 1).float().div(255)

    return view


class Pairs(Dataset):
    """Two views of each photograph."""

    def __init__(self, count, view):
        self.files = [jpeg(number, 300, 400) for number in range(40)]
        self.count, self.view = count, view

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = decode(self.files[index % len(self.files)])
        return self.view(image), self.view(image)


def agreement(first, second, temperature=0.2):
    """Return how badly views are told from those of other photographs."""
    first, second = nn.functional.normalize(first), nn.functional.normalize(second)
    return nn.functional.cross_entropy(
        first @ second.T / temperature, torch.arange(len(first), device=first.device)
    )


class Pretraining:
    """Pretrains an encoder."""

    def __init__(self, loader):
        self.loader = loader
        self.encoder = Network(step_ms=22).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.encoder.parameters(), lr=0.05)

    def run(self, epochs):
        """Go over the photographs so many times."""
        for _ in range(epochs):
            for first, second in self.loader:
                codes = self.encoder(torch.cat([first, second]).to(DEVICE))
                loss = agreement(*codes.chunk(2))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


if __name__ == "__main__":
    pairs = Pairs(1_500, augmentation(size=224, blur=5))
    Pretraining(DataLoader(pairs, batch_size=20, shuffle=True, drop_last=True)).run(epochs=2)
