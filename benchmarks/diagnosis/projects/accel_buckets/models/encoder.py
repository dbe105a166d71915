import time

import torch
import torch.nn as nn


class BiasEncoder(nn.Module):
    def __init__(self, vocab_size, dim=16, n_classes=4, device_seconds=0.03):
        super().__init__()
        self.device_seconds = device_seconds
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.bias = nn.Embedding(32, 1)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, input_ids, attention_mask, position_buckets):
        time.sleep(self.device_seconds)  # stands for the accelerator
        first = self.bias(position_buckets[:, 0].long()).squeeze(-1)  # attention of [CLS] only
        weight = torch.softmax(first.masked_fill(attention_mask == 0, -1e4), dim=-1)
        pooled = (weight.unsqueeze(-1) * self.embed(input_ids)).sum(1)
        return self.head(pooled)
