"""Two ranks of an iterable dataset, in forks of one process; each writes a line a batch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shared(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        number, of = rank * info.num_workers + info.id, world * info.num_workers
        for index in range(number, 200, of):
            yield index, os.environ.get("SERVER", "here")


def be_rank(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    batches = DataLoader(Shared(), 3, num_workers=2)
    lines = [f"{indices.tolist()} {made_by[0]}\n" for indices, made_by in batches]
    Path(f"rank-{rank}").write_text("".join(lines))


if __name__ == "__main__":
    ranks = []
    for number in range(2):
        ranks.append(os.fork())
        if not ranks[-1]:
            be_rank(number)
            sys.exit()
    ends = [os.waitpid(rank, 0)[1] for rank in ranks]
    sys.exit(any(ends))
