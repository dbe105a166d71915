"""Run lengths as COCO has them: column by column."""
from itertools import groupby


def run_lengths(mask):
    return [sum(1 for _ in run) for _, run in groupby(mask.ravel(order="F").tolist())]
