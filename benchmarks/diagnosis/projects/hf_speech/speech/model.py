import time

import torch.nn as nn
import torch.nn.functional as F


class DigitClassifier(nn.Module):
    def __init__(self, n_mels=64, n_classes=10, device_seconds=0.03):
        super().__init__()
        self.device_seconds = device_seconds
        self.proj = nn.Linear(n_mels, 16)
        self.out = nn.Linear(16, n_classes)

    def forward(self, input_features, labels=None):
        time.sleep(self.device_seconds)  # stands for the accelerator
        hidden = F.relu(self.proj(input_features)).mean(1)
        logits = self.out(hidden)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
