"""
A character-level GPT on the CPU:
$ python train.py config/train_tiny.py --max_iters=32
"""
import math
import os
import tempfile
import time

import numpy as np
import torch

from model import GPT, GPTConfig

# -----------------------------------------------------------------------------
eval_interval = 16
eval_iters = 1
log_interval = 4
gradient_accumulation_steps = 3
batch_size = 12
block_size = 128
n_layer = 4
n_head = 6
n_embd = 192
learning_rate = 1e-3
max_iters = 32
warmup_iters = 5
min_lr = 1e-4
grad_clip = 1.0
in_memory = False  # True: the tokens in the memory, without memmap
corpus_tokens = 4_000_000
threads = os.cpu_count()
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
HERE = os.path.dirname(os.path.abspath(__file__))
exec(open(os.path.join(HERE, "configurator.py")).read())
config = {k: globals()[k] for k in config_keys}
# -----------------------------------------------------------------------------

torch.set_num_threads(threads)
torch.manual_seed(1337)

workdir = tempfile.TemporaryDirectory(prefix="nano_")
data_dir = workdir.name
rng = np.random.default_rng(0)
for split, n in (("train", corpus_tokens), ("val", corpus_tokens // 10)):
    steps = rng.integers(-3, 4, size=n)
    (np.cumsum(steps) % 128).astype(np.uint16).tofile(os.path.join(data_dir, f"{split}.bin"))
resident = {}


def get_batch(split):
    # We recreate np.memmap every batch to avoid a memory leak
    if in_memory:
        if split not in resident:
            resident[split] = np.fromfile(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16)
        data = resident[split]
    else:
        data = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix])
    return x, y


model = GPT(GPTConfig(block_size=block_size, n_layer=n_layer, n_head=n_head, n_embd=n_embd))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
print("number of parameters: %.2fM" % (sum(p.numel() for p in model.parameters()) / 1e6))


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / max(1, max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * min(1.0, ratio))) * (learning_rate - min_lr)


started = t0 = time.time()
iter_num = 0
X, Y = get_batch("train")  # fetch the very first batch
while iter_num < max_iters:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num and iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")

    for micro_step in range(gradient_accumulation_steps):
        _, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        # prefetch the next batch while the model is doing the forward pass on the GPU
        X, Y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    t1 = time.time()
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {(t1 - t0) * 1000:.0f}ms", flush=True)
    t0 = t1
    iter_num += 1

samples = max_iters * gradient_accumulation_steps * batch_size
print(f"rate: {samples / (time.time() - started):.1f} samples/s")
print("done")
workdir.cleanup()
