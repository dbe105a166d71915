"""The script that the exactness benchmark kills: trains a little and writes down every sample.

Each rank writes the keys of each step's samples to a ledger before the step, so that a kill at any
instant leaves at most a line for a step that no checkpoint holds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

# As it loads, torch imports NumPy and takes whatever that raises for a lack of NumPy: ctrl-C, too.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
import torch  # noqa: E402 - see above

signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

import headrace  # noqa: E402 - torch first


def main() -> None:
    """Train until the epochs are done, going on from the newest checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))

    model = headrace.prepare(torch.nn.Linear(3, 1), strategy="ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = headrace.ShardDataset(options.data, max_bad_rate=0.1)
    loader = headrace.DataLoader(
        dataset, global_batch=16, shuffle=True, seed=5, num_workers=options.workers
    )
    checkpointer = headrace.Checkpointer(os.environ["HEADRACE_CHECKPOINT_DIR"])
    restored = checkpointer.restore(model, optimizer, loader)
    step = restored.step if restored else 0
    ledger_file = options.folder / f"ledger-{options.attempt:03d}-{rank}.jsonl"
    with ledger_file.open("a") as ledger:
        write(ledger, {"restored": step})
        while loader.epoch < options.epochs:
            for batch in loader:
                step += 1
                write(ledger, {"step": step, "epoch": loader.epoch, "keys": batch["__key__"]})
                loss = model(batch["jpg"].float().mean(dim=(1, 2)) / 255).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step % 4 == 0:
                    checkpointer.save(step, model, optimizer, loader)
            step += 1  # a step of its own, so that "the epoch has ended" can be resumed too
            checkpointer.save(step, model, optimizer, loader)
        write(ledger, {"done": step})


def write(ledger, entry: dict) -> None:
    """Append one line, in the file before the step goes on."""
    ledger.write(json.dumps(entry) + "\n")
    ledger.flush()


if __name__ == "__main__":
    main()
