"""compact.py SHARD: packs old logs for as long as the run that started it lives."""
import bz2
import os
import random
import sys
import time


def main(shard):
    parent, began = os.getppid(), time.monotonic()
    block = random.Random(shard).randbytes(600_000)
    while os.getppid() == parent and time.monotonic() - began < 180:
        with open(shard, "wb") as out:
            out.write(bz2.compress(block))


main(sys.argv[1])
