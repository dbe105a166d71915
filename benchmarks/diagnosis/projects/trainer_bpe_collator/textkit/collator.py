from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from .bpe import BytePairs


@dataclass
class EncodeAndPad:
    tokenizer: BytePairs
    max_length: int = 128

    def __call__(self, examples):
        encoded = [self._encode(example) for example in examples]
        ids = pad_sequence(encoded, batch_first=True)
        labels = torch.tensor([example["label"] for example in examples])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    def _encode(self, example):
        return torch.tensor(self.tokenizer.encode(example["text"])[: self.max_length])
