import functools
import os

import torch.distributed as dist


def setup():
    """(rank, world size); alone without a launcher."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def is_main():
    return not dist.is_initialized() or dist.get_rank() == 0


def main_only(fn):
    @functools.wraps(fn)
    def call(*args, **kwargs):
        if is_main():
            return fn(*args, **kwargs)
        return None

    return call


def cleanup():
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
