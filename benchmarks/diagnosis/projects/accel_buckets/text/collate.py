import numpy as np
import torch

from .buckets import bucket_table, relative_position_bucket


def tokenizer_pad(rows, tokenizer, max_length, position_bias):
    """Tokenizes, pads to max_length and adds what ``position_bias`` makes of the lengths."""
    ids, mask = [], []
    for row in rows:
        tokens = tokenizer.encode(row["text"], max_length)
        missing = max_length - len(tokens)
        ids.append(tokens + [tokenizer.pad_token_id] * missing)
        mask.append([1] * len(tokens) + [0] * missing)
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor(mask),
        "position_buckets": position_bias(mask),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def python_bias(mask):
    out = []
    for keep in mask:
        length = len(keep)
        out.append(
            [
                [
                    relative_position_bucket(j - i) if keep[i] and keep[j] else 0
                    for j in range(length)
                ]
                for i in range(length)
            ]
        )
    return torch.tensor(out, dtype=torch.uint8)


class TableBias:
    def __init__(self, max_length):
        table = bucket_table(max_length)
        at = np.arange(max_length)
        self.square = table[at[None, :] - at[:, None] + max_length - 1]

    def __call__(self, mask):
        keep = np.asarray(mask, dtype=np.uint8)
        return torch.from_numpy(self.square[None] * keep[:, :, None] * keep[:, None, :])
