"""Train on photographs; two workers keep up."""

import torch
from emulated import DEVICE, Network
from photos import decode, jpeg
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Photographs and their classes."""

    def __init__(self, count):
        self.count = count
        self.files = [jpeg(number) for number in range(64)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = decode(self.files[index % 64])
        return torch.from_numpy(image).permute(2, 0, 1), index % 10


train_loader = DataLoader(Photos(1600), batch_size=16, shuffle=True, num_workers=2)
test_loader = DataLoader(Photos(320), batch_size=16, num_workers=1)
model = Network(step_ms=35).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _epoch in range(1):
    model.train()
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in test_loader:
            right += int((model(x.to(DEVICE)).argmax(1) == y.to(DEVICE)).sum())
    print(f"{right / 320:.1%} right")
