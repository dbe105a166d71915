import argparse
import time

import torch
from accelerate import Accelerator
from emulated import Accelerated
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Prompts(Dataset):
    def __init__(self, count, vocabulary, length):
        self.count, self.vocabulary, self.length = count, vocabulary, length

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(self.length // 2, self.length, (1,), generator=generator))
        ids = torch.randint(1, self.vocabulary, (length,), generator=generator)
        return {"input_ids": ids}


def collate(examples):
    ids = [example["input_ids"] for example in examples]
    padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"input_ids": padded, "attention_mask": (padded != 0).long()}


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids, attention_mask):
        logits = self.head(self.embed(input_ids[:, :12]))
        labels = input_ids[:, 1:13].masked_fill(attention_mask[:, 1:13] == 0, -100)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per-device-batch-size", type=int, default=8)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=4)
    parser.add_argument("--max-train-steps", type=int, default=60)
    parser.add_argument("--vocabulary", type=int, default=256)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    batches = args.max_train_steps * args.gradient_accumulation_steps
    dataset = Prompts(batches * args.per_device_batch_size, args.vocabulary, 128)
    loader = DataLoader(
        dataset,
        shuffle=True,
        batch_size=args.per_device_batch_size,
        collate_fn=collate,
        num_workers=1,
    )
    model = Accelerated(LanguageModel(args.vocabulary), step_ms=30)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.max_train_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    completed, start = 0, time.perf_counter()
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            completed += 1
            if completed % 20 == 0:
                accelerator.print(f"step {completed}: loss {loss.item():.4f}")
    seconds = time.perf_counter() - start
    accelerator.print(f"{len(dataset) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
