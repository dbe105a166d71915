"""Train on photographs with a DataLoader as it comes."""

import cv2
import torch
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import DataLoader, Dataset

cv2.setNumThreads(0)


class Photos(Dataset):
    """Photographs: decoded, cropped, scaled."""

    def __init__(self):
        self.files = [jpeg(number, 240, 320) for number in range(64)]

    def __len__(self):
        return 1600

    def __getitem__(self, index):
        image = decode(self.files[index % 64])
        image = cv2.resize(image[20:220, 30:290], (224, 224))
        pixels = torch.from_numpy(image).permute(2, 0, 1).float()
        return (pixels / 255 - 0.45) / 0.22, index % 10


train_set = Photos()
loader = DataLoader(train_set, batch_size=16, shuffle=True)
model = Network(step_ms=22).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _epoch in range(1):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        loss.backward()
        optimizer.step()
