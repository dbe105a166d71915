"""Many volumes in one file: compressed differences between slices, and an index."""
import contextlib
import json
import multiprocessing
import os
import zlib

import numpy as np


def write_store(path, volumes, shape, seed=9):
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, s, dtype=np.float32) for s in shape), indexing="ij")
    index = []
    with open(path, "wb") as f:
        for k in range(volumes):
            c = rng.uniform(-0.4, 0.4, size=3)
            body = 900 * np.exp(-3 * ((z - c[0]) ** 2 + (y - c[1]) ** 2 + (x - c[2]) ** 2))
            volume = body.astype(np.int16) + rng.integers(-8, 9, size=shape, dtype=np.int16)
            delta = np.diff(volume, axis=0, prepend=np.int16(0)).astype(np.int16)
            packed = zlib.compress(delta.tobytes(), 1)
            index.append({"offset": f.tell(), "size": len(packed), "label": k % 2})
            f.write(packed)
    with open(path + ".json", "w") as f:
        json.dump({"shape": list(shape), "index": index}, f)


class VolumeStore:
    """The lock keeps the processes from moving each other's file position."""

    def __init__(self, path, locking=True):
        with open(path + ".json") as f:
            meta = json.load(f)
        self.shape, self.index = tuple(meta["shape"]), meta["index"]
        self.file = open(path, "rb", buffering=0)
        self.guard = multiprocessing.Lock() if locking else contextlib.nullcontext()

    def __len__(self):
        return len(self.index)

    def label(self, k):
        return self.index[k]["label"]

    def read(self, k):
        entry = self.index[k]
        with self.guard:
            packed = os.pread(self.file.fileno(), entry["size"], entry["offset"])
            delta = np.frombuffer(zlib.decompress(packed), dtype=np.int16).reshape(self.shape)
            return np.cumsum(delta, axis=0, dtype=np.int16)
