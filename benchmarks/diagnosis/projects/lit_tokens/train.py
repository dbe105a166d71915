import argparse
import tempfile
import time
import warnings

import lightning as L
import torch

from asr.callbacks import EpochPrinter, ErrorRateMonitor, Throughput
from asr.datamodule import TokenData
from asr.module import TokenTagger


def cli():
    p = argparse.ArgumentParser()
    p.add_argument("--max-epochs", type=int, default=5)
    p.add_argument("--length", type=int, default=96, help="tokens of an utterance")
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--ter-every", type=int, default=1, help="steps between error rates; 0: none")
    return p.parse_args()


def main(args):
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    torch.set_num_threads(1)
    L.seed_everything(1)
    with tempfile.TemporaryDirectory(prefix="tokens_") as root:
        data = TokenData(root, length=args.length, batch_size=args.batch_size)
        data.prepare_data()
        meter = Throughput()
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=args.max_epochs,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[meter, ErrorRateMonitor(args.ter_every), EpochPrinter()],
            default_root_dir=root,
        )
        start = time.time()
        trainer.fit(TokenTagger(), datamodule=data)
        print(f"rate: {meter.samples / (time.time() - start):.1f} samples/s")
        print("done")


if __name__ == "__main__":
    main(cli())
