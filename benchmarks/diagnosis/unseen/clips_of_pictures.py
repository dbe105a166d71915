"""Train on clips whose frames stay pictures until they reach the training process."""

import numpy as np
import torch
from emulated import DEVICE, Network
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

FRAMES, SIZE = 8, (224, 224)


class Clips(Dataset):
    """Runs of frames of one film."""

    def __init__(self, count):
        self.film = np.random.default_rng(6).integers(0, 256, (60, *SIZE, 3), np.uint8)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        start = index % (len(self.film) - FRAMES)
        frames = [Image.fromarray(frame) for frame in self.film[start : start + FRAMES]]
        return {"frames": frames, "label": index % 10}


def as_lists(clips):
    """Return clips and labels, as the processor of the model wants them."""
    return {key: [clip[key] for clip in clips] for key in clips[0]}


class Processor:
    """Makes tensors of pictures: the middle of each frame, in grey."""

    def __init__(self, side):
        left, top = ((length - side) // 2 for length in SIZE)
        self.box = (left, top, left + side, top + side)

    def __call__(self, clips):
        """Return a tensor of all frames of all clips."""
        middles = [[np.asarray(frame.crop(self.box)) for frame in frames] for frames in clips]
        return torch.from_numpy(np.array(middles)).float().mean(-1).div(255)


def main():
    """Train one epoch."""
    loader = DataLoader(
        Clips(2_400), batch_size=16, shuffle=True, num_workers=2, collate_fn=as_lists
    )
    processor = Processor(side=8)
    model = Network(step_ms=10).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader:
        x, y = processor(batch["frames"]), torch.tensor(batch["label"])
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
