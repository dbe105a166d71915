"""Each of two ranks writes for TensorBoard in a folder of its own; rank 1 opens its file first."""

import os

import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
if rank == 0:
    dist.barrier()
writer = SummaryWriter(f"events/{os.environ['HEADRACE_ATTEMPT']}/rank{rank}")
writer.add_scalar("loss", rank, 0)
writer.flush()
if rank == 1:
    dist.barrier()
writer.add_scalar("loss", rank, 1)
writer.close()
dist.destroy_process_group()
