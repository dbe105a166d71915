"""FixMatch: a labelled and an unlabelled batch each step."""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

from semi import data


class WideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16, 10)

    def forward(self, x):
        time.sleep(0.03)
        return self.fc(x.flatten(1))


def fixmatch_loss(model, x, y, weak, strong, threshold=0.95):
    logits = model(torch.cat([x, weak, strong]))
    labelled, logits_weak, logits_strong = logits.split(len(x))
    with torch.no_grad():
        confidence, guess = logits_weak.softmax(-1).max(-1)
    unsupervised = (F.cross_entropy(logits_strong, guess, reduction="none") * (confidence > threshold)).mean()
    return F.cross_entropy(labelled, y) + unsupervised


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-steps", type=int, default=340)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    labelled_loader, unlabelled_loader = data.loaders(args.total_steps, args.batch_size)
    labelled_iter, unlabelled_iter = iter(labelled_loader), iter(unlabelled_loader)
    model = WideNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, nesterov=True, momentum=0.9)
    for step in range(args.total_steps):
        try:
            x, y = next(labelled_iter)
        except StopIteration:
            labelled_iter = iter(labelled_loader)
            x, y = next(labelled_iter)
        try:
            weak, strong = next(unlabelled_iter)
        except StopIteration:
            unlabelled_iter = iter(unlabelled_loader)
            weak, strong = next(unlabelled_iter)
        loss = fixmatch_loss(model, x, y, weak, strong)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
