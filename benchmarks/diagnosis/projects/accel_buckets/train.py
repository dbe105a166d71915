import argparse
import functools
import os
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HOME", os.path.join(tempfile.gettempdir(), "hf_home_buckets"))

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import Dataset
from torch.utils.data import DataLoader

from models.encoder import BiasEncoder
from text.collate import TableBias, python_bias, tokenizer_pad
from text.vocab import WordTokenizer, make_texts

config = {
    "texts": 2400,
    "num_epochs": 4,
    "batch_size": 24,
    "lr": 3e-3,
    "num_workers": 2,
    "seed": 42,
}


def training_function(config, args):
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    set_seed(config["seed"])

    words, texts, labels = make_texts(config["texts"])
    tokenizer = WordTokenizer(words)
    train_dataset = Dataset.from_dict({"text": texts, "label": labels})

    position_bias = TableBias(args.max_length) if args.table_bias else python_bias
    collate_fn = functools.partial(
        tokenizer_pad, tokenizer=tokenizer, max_length=args.max_length, position_bias=position_bias
    )
    train_dataloader = DataLoader(
        train_dataset,
        shuffle=True,
        collate_fn=collate_fn,
        batch_size=config["batch_size"],
        num_workers=config["num_workers"],
        persistent_workers=config["num_workers"] > 0,
        drop_last=True,
    )
    model = BiasEncoder(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=config["lr"], epochs=args.num_epochs, steps_per_epoch=len(train_dataloader)
    )
    model, optimizer, train_dataloader, scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, scheduler
    )

    samples = 0
    start = time.time()
    for epoch in range(args.num_epochs):
        model.train()
        total = torch.zeros(())
        for step, batch in enumerate(train_dataloader):
            target = batch.pop("labels")
            logits = model(**batch)
            loss = F.cross_entropy(logits, target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += loss.detach()
            samples += len(target)
        accelerator.print(f"epoch {epoch}: {total.item() / (step + 1):.4f}", flush=True)
    accelerator.print(f"rate: {samples / (time.time() - start):.1f} samples/s")
    accelerator.print("done")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-epochs", type=int, default=config["num_epochs"])
    parser.add_argument("--max-length", type=int, default=112)
    parser.add_argument("--table-bias", action="store_true", help="look the position buckets up in a table")
    training_function(config, parser.parse_args())


if __name__ == "__main__":
    main()
