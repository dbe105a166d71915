import argparse
import os
import time

import torch
import torch.distributed as dist
from emulated import Accelerated
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    use_cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("nccl" if use_cuda else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if use_cuda:
        torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")


def make_set(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 128, generator=generator)
    return TensorDataset(inputs, (inputs[:, :10]).argmax(1))


class Trainer:
    def __init__(self, model, train_data, val_data, optimizer, device, args):
        self.rank = dist.get_rank()
        self.device, self.args = device, args
        self.model = DDP(model.to(device))
        self.train_data, self.val_data, self.optimizer = train_data, val_data, optimizer

    def run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            loss = self.run_batch(source.to(self.device), targets.to(self.device))
        if self.rank == 0:
            print(f"Epoch {epoch} | Steps: {len(self.train_data)} | loss {loss:.3f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        correct = 0
        for source, targets in self.val_data:
            logits = self.model.module(source.to(self.device))
            correct += (logits.argmax(1) == targets.to(self.device)).sum().item()
        self.model.train()
        print(f"Validation accuracy {correct / len(self.val_data.dataset):.3f}")

    def train(self):
        for epoch in range(self.args.total_epochs):
            self.run_epoch(epoch)
            if self.args.eval_every and (epoch + 1) % self.args.eval_every == 0:
                if self.rank == 0:
                    self.validate()
                dist.barrier()


def main():
    parser = argparse.ArgumentParser(description="Distributed training job")
    parser.add_argument("--total-epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--eval-every", type=int, default=1, help="epochs; 0: never")
    args = parser.parse_args()
    device = setup()
    torch.manual_seed(0)
    train_set, val_set = make_set(1280, 1), make_set(1600, 2)
    train_data = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=False,
        num_workers=1,
        persistent_workers=True,
        sampler=DistributedSampler(train_set),
    )
    val_data = DataLoader(val_set, batch_size=args.batch_size)
    net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    model = Accelerated(net, step_ms=30)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    trainer = Trainer(model, train_data, val_data, optimizer, device, args)
    dist.barrier()
    start = time.time()
    trainer.train()
    if dist.get_rank() == 0:
        samples = len(train_set) * args.total_epochs
        print(f"{samples / (time.time() - start):.1f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
