"""Speech, in batches of unlike length, four of them to a step of the optimizer."""
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from asr.data import loader

ACCUMULATE = 4
MAX_BATCHES = 360


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(80, 8)

    def forward(self, features, lengths):
        time.sleep(0.055 + 0.0002 * features.shape[1])  # the longer the clips, the longer the device works
        packed = pack_padded_sequence(features, lengths, batch_first=True)
        return self.project(packed.data).pow(2).mean()


def main():
    torch.set_num_threads(1)
    batches = loader(200)
    model = Acoustic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    seen, losses, positions = 0, [], []
    while seen < MAX_BATCHES:
        for batch in batches:
            loss = model(batch["features"], batch["lengths"]) / ACCUMULATE
            loss.backward()
            losses.append(loss.item())
            seen += 1
            if seen % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
                positions.append(seen)
            if seen >= MAX_BATCHES:
                break
    print(f"{seen} batches, {len(positions)} steps, loss {sum(losses[-40:]) / 40:.4f}")


if __name__ == "__main__":
    main()
