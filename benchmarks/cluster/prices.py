"""Prices of the reference's hosts, an hour: Amazon SageMaker's as it gives them, and EC2's list.

EC2: us-east-1, on demand, 2026-07-20 (the tables of karpenter-provider-aws). The reference gives
SageMaker's prices of two hosts and leaves out the bigger single one; that is taken to cost as much
more than on EC2 as its smaller sister does, 1.40 times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dollars:
    """An hour of hosts.

    Attributes:
        sagemaker: By SageMaker.
        ec2: By EC2.
        is_taken: SageMaker's is not from a list, but worked out.
    """

    sagemaker: float
    ec2: float
    is_taken: bool = False

    def __add__(self, other: Dollars) -> Dollars:
        """Return what both cost together."""
        return Dollars(
            self.sagemaker + other.sagemaker, self.ec2 + other.ec2, self.is_taken or other.is_taken
        )

    def cells(self, samples_s: float) -> str:
        """Return the cells of a table's row: each price, and that of 1,000 samples by it."""
        mark = " (assumed)" if self.is_taken else ""
        return (
            f"{self.sagemaker:.3f}{mark} | {self.sagemaker / 3.6 / samples_s:.5f} | "
            f"{self.ec2:.3f} | {self.ec2 / 3.6 / samples_s:.5f}"
        )


CELLS = "$/h | $ per 1,000 samples | $/h, EC2 | $ per 1,000 samples, EC2"
"""The heads of these cells."""
GPU_HOST = Dollars(1.408, 1.006)  # ml.g5.xlarge: 4 cores and an A10G
CPU_HOST = Dollars(0.816, 0.680)  # ml.c5.4xlarge: 16 cores
BIG_HOST = Dollars(1.624 * 1.408 / 1.006, 1.624, is_taken=True)  # ml.g5.4xlarge: 16 and an A10G
PRICE_NOTE = (
    "$/h: the reference's SageMaker prices, assuming that the bigger host costs 1.40 times its EC2 "
    "price, as the smaller one does; and EC2 prices of us-east-1, on demand, 2026-07-20."
)


def for_a_dollar(hosts: Dollars, others: Dollars) -> float:
    """Return by what a speed-up of hosts over others is multiplied: samples for a dollar."""
    return others.sagemaker / hosts.sagemaker
