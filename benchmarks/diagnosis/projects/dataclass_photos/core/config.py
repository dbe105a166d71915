import argparse
import dataclasses


@dataclasses.dataclass
class Config:
    train_photos: int = 640
    val_photos: int = 112
    classes: int = 5
    side: int = 256
    input: int = 64
    batch: int = 16
    val_batch: int = 16
    workers: int = 2
    val_workers: int = 0
    epochs: int = 10
    eval_every: int = 1
    lr: float = 1e-3
    device_seconds: float = 0.03

    @classmethod
    def from_cli(cls):
        parser = argparse.ArgumentParser()
        for f in dataclasses.fields(cls):
            parser.add_argument("--" + f.name.replace("_", "-"), type=f.type, default=f.default)
        return cls(**vars(parser.parse_args()))
