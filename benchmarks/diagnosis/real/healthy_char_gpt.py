import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1337)
torch.set_num_threads(1)


class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        t = x.shape[1]
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * x.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        size = n_embd // n_head
        self.heads = nn.ModuleList(Head(n_embd, size, block_size) for _ in range(n_head))
        self.ffwd = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd)
        )
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        normed = self.ln1(x)
        x = x + torch.cat([head(normed) for head in self.heads], dim=-1)
        return x + self.ffwd(self.ln2(x))


class BigramLanguageModel(nn.Module):
    def __init__(self, vocab_size, args):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, args.n_embd)
        self.position_embedding_table = nn.Embedding(args.block_size, args.n_embd)
        self.blocks = nn.Sequential(
            *(Block(args.n_embd, args.n_head, args.block_size) for _ in range(args.n_layer))
        )
        self.lm_head = nn.Linear(args.n_embd, vocab_size)

    def forward(self, idx, targets):
        x = self.token_embedding_table(idx)
        x = self.blocks(x + self.position_embedding_table.weight[: idx.shape[1]])
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(data, args):
    ix = torch.randint(len(data) - args.block_size, (args.batch_size,))
    x = torch.stack([data[i : i + args.block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + args.block_size + 1] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss(model, data, args, iters=4):
    model.eval()
    losses = [model(*get_batch(data, args))[1].item() for _ in range(iters)]
    model.train()
    return sum(losses) / iters


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--block_size", type=int, default=64)
    parser.add_argument("--max_iters", type=int, default=200)
    parser.add_argument("--eval_interval", type=int, default=100)
    parser.add_argument("--n_embd", type=int, default=64)
    parser.add_argument("--n_head", type=int, default=4)
    parser.add_argument("--n_layer", type=int, default=3)
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8")[:200_000]
    chars = sorted(set(text))
    stoi = {ch: i for i, ch in enumerate(chars)}
    data = torch.tensor([stoi[ch] for ch in text])
    n = int(0.9 * len(data))
    train_data, val_data = data[:n], data[n:]
    model = BigramLanguageModel(len(chars), args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = time.time()
    for step in range(args.max_iters):
        if step % args.eval_interval == 0:
            print(f"step {step}: val loss {estimate_loss(model, val_data, args):.4f}")
        xb, yb = get_batch(train_data, args)
        _, loss = model(xb, yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    tokens = args.max_iters * args.batch_size * args.block_size
    print(f"{tokens / (time.time() - start):.0f} tokens/s")


if __name__ == "__main__":
    main()
