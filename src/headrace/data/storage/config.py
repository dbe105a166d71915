"""How a store connects, waits and retries."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed request is tried again: exponential backoff with full jitter.

    Wait n (from 0) is uniform in [0, min(longest_wait_s, first_wait_s * 2**n)].
    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/

    Attributes:
        deadline_s: Total time of one operation over all its attempts.
        first_wait_s: Bound of the wait before the second attempt.
        longest_wait_s: Bound of every wait.
        unreachable_s: Deadline instead, where a host name does not resolve or nothing listens
            and no request was answered yet: a wrong endpoint should not take a minute to tell.
        stall_s: An attempt ends when no byte arrives for so long.
        corrupt_attempts: How often a short or wrong answer is asked for in all.
    """

    deadline_s: float = 60.0
    first_wait_s: float = 0.1
    longest_wait_s: float = 8.0
    unreachable_s: float = 10.0
    stall_s: float = 10.0
    corrupt_attempts: int = 3

    def __post_init__(self) -> None:
        if min(self.deadline_s, self.first_wait_s, self.longest_wait_s, self.stall_s) <= 0:
            raise UsageError(f"{self}: times are greater than 0 seconds.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Settings of a store. Credentials come from where each cloud's own tools find them.

    Attributes:
        retry: When a failed request is tried again.
        hedge_after_s: A GET that takes longer is asked for again on a fresh connection; the
            first answer wins.
        in_flight: Requests that run at once; more wait their turn.
        part_bytes: Longer reads and writes are cut into parts of this size that travel in
            parallel.
        coalesce_bytes: Ranges of one object no further apart than this travel in one request.
        connect_timeout_s: Time to open a connection.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hedge_after_s: float = 2.0
    in_flight: int = 64
    part_bytes: int = 8 * 2**20
    coalesce_bytes: int = 256 * 2**10
    connect_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if self.in_flight < 1 or self.hedge_after_s <= 0:
            raise UsageError(f"{self}: in_flight is 1 or more and hedge_after_s above 0.")
        if self.part_bytes < 5 * 2**20:
            raise UsageError(
                f"part_bytes={self.part_bytes}: S3 takes parts of 5 MiB (5242880) or more."
            )
