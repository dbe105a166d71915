import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from emulated import Accelerated
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class DocumentDataset(Dataset):
    def __init__(self, path, sequence_length, vocabulary=512):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.sequence_length, self.vocabulary = sequence_length, vocabulary

    def __len__(self):
        return 2880

    def __getitem__(self, index):
        start = index * 997 % (len(self.tokens) - self.sequence_length - 1)
        window = self.tokens[start : start + self.sequence_length + 1].astype(np.int64)
        document, last = [], -1
        for token in window.tolist():
            if token != last:
                document.append(token % self.vocabulary)
                last = token
        document += [0] * (self.sequence_length + 1 - len(document))
        seen = {}
        positions = [seen.setdefault(token, len(seen)) for token in document]
        tokens = torch.tensor(document)
        return tokens[:-1], tokens[1:], torch.tensor(positions[:-1])


class TransformerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.ffn(self.norm(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary=512, dim=32, layers=2):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(TransformerBlock(dim) for _ in range(layers))
        self.output = nn.Linear(dim, vocabulary)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens[:, :16])
        for layer in self.layers:
            h = layer(h)
        return self.output(h)


def build(device, world_size, args):
    mesh = init_device_mesh(device.type, (world_size,))
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=True)
    return Accelerated(model, step_ms=40), optimizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--sequence-length", type=int, default=4096)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model, optimizer = build(device, world_size, args)
    dataset = DocumentDataset(args.tokens, args.sequence_length)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        drop_last=True,
        num_workers=args.num_workers,
    )
    start = time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels, _ in loader:
            logits = model(inputs.to(device))
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[:, :16].to(device).flatten()
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    if rank == 0:
        count = args.epochs * len(loader) * args.batch_size * world_size
        print(f"{count / (time.perf_counter() - start):.1f} sequences/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
