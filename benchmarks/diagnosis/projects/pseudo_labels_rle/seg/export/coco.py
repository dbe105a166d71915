import numpy as np

from .rle import run_lengths


class CocoWriter:
    def __init__(self, path):
        self.out = open(path, "wb")
        self.names = []

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.out.close()

    def add(self, names, masks):
        for name, mask in zip(names, masks):
            self._add_one(name, mask)

    def _add_one(self, name, mask):
        counts = np.asarray(run_lengths(mask), dtype=np.uint32)
        counts.tofile(self.out)
        self.names.append((name, len(counts)))
