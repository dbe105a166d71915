"""How long batches take, here and away, and when one is better made on the other side. Pure."""

from __future__ import annotations

_NEWER = 0.2  # weight of the newest
_UNKNOWN_S = 5.0  # while nobody knows how long a batch takes
_LONG_S = 10.0  # no strand of an iterable dataset is late sooner,
_LONG_FIRST_S = 90.0  # ... or with its first batch: hosts load and open the dataset
_TIMES_HERE, _TIMES_AWAY = 4.0, 2.0


class Pace:
    """What batches usually take.

    Attributes:
        usual_s: Of late, in seconds; None while none was made.
    """

    def __init__(self) -> None:
        self.usual_s: float | None = None

    def note(self, took_s: float) -> None:
        """Note what a batch took."""
        before_s = took_s if self.usual_s is None else self.usual_s
        self.usual_s = before_s + _NEWER * (took_s - before_s)


def is_better_made_here(away_for_s: float, here: Pace, away: Pace) -> bool:
    """Whether a worker here that has nothing to do is to make a batch that is waited for.

    Args:
        away_for_s: How long ago a helper was asked for it.
        here: What a worker here takes over a batch.
        away: What a helper takes over a batch, from when it is asked.
    """
    if here.usual_s is None:
        return away_for_s > _UNKNOWN_S
    if away.usual_s is None:
        return away_for_s > _TIMES_HERE * here.usual_s + 1.0
    still_s = away.usual_s - away_for_s
    return still_s > here.usual_s or away_for_s > _TIMES_AWAY * away.usual_s + here.usual_s


def is_better_made_away(here_for_s: float, rounds: float, here: Pace, away: Pace) -> bool:
    """Whether a helper with room is to make a batch that is waited for and was given out here.

    Args:
        here_for_s: How long ago it was given out.
        rounds: How many batches a worker here makes before it and with it.
        here: What a worker here takes over a batch.
        away: What a helper takes over a batch, from when it is asked.
    """
    if here.usual_s is None or away.usual_s is None:
        return False
    expected_s = rounds * here.usual_s
    is_long_over = here_for_s > _TIMES_HERE * expected_s + away.usual_s
    return is_long_over or expected_s - here_for_s > _TIMES_AWAY * away.usual_s


def is_strand_overdue(
    waited_s: float, held_up_s: float, places: int, here: Pace, away: Pace
) -> bool:
    """Whether a strand of an iterable dataset that is waited for is to come home.

    It is gone through anew here, up to where it was. Who waits as long as that takes before doing
    so waits twice as long as one who knew what would come, at most. One that is slow time and again
    comes home, too.

    Args:
        waited_s: How long its batch, and nothing else, has been waited for.
        held_up_s: How long its batches, and nothing else, have been waited for in all.
        places: How many batches of it were made before.
        here: What a worker here takes over a batch.
        away: What a helper takes over a batch, from when it is asked.
    """
    one_s = next((pace.usual_s for pace in (here, away) if pace.usual_s is not None), 0.0)
    long_s = (_LONG_S if places else _LONG_FIRST_S) + _TIMES_HERE * one_s
    return waited_s > long_s + places * one_s or held_up_s > long_s + _TIMES_HERE * places * one_s
