"""Training without a loader that evaluates every 10 steps, by the model that every step runs."""

import torch
from torch import nn


class Net(nn.Module):
    """A model whose forward has a line of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)]
        )

    def forward(self, x):
        return self.body(x)


@torch.no_grad()
def estimate_loss(model):
    return sum(float(model(torch.randn(256, 256)).mean()) for _ in range(40))


def main():
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(120):
        if step % 10 == 0:
            estimate_loss(model)  # at fault
        loss = model(torch.randn(256, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
