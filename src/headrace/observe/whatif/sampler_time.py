"""The time that a rank spends in its sampler while it asks for batches, as recorded.

The rank's own thread asks the sampler for the indices of a batch within `next()`, and before the
first batch while the iterator is made: so it waits for this however many workers there are.
"""

from __future__ import annotations

import numpy as np

from headrace.observe.whatif.tables import Columns, Floats
from headrace.observe.whatif.train_steps import TrainSteps


def sampler_ns_of_fetches(fetches: Columns) -> Floats:
    """Return the time of each request for a batch in the sampler, 0 where it is not recorded.

    It is within the wait for the batch, but for that of the first, which has the iterator's.
    """
    spent = np.maximum(fetches["sampler_ns"].astype(np.float64), 0.0)
    return np.where(fetches["batch"] > 0, np.minimum(spent, fetches["wait_ns"]), spent)


def sampler_ns_of_steps(steps: TrainSteps, fetches: Columns) -> Floats:
    """Return the time in samplers in each step, at most its wait for data."""
    spent, waited = np.zeros(len(steps)), steps.data_wait_ns
    by_fetch = sampler_ns_of_fetches(fetches)
    for rank in steps.ranks:
        places = np.flatnonzero(steps.rows["rank"] == rank)
        begins, ends = steps.times_of(rank)
        mine = fetches["rank"] == rank
        asked_ns = fetches["start_ns"][mine]
        within = np.searchsorted(begins, asked_ns, side="right") - 1
        counts = (within >= 0) & (asked_ns < ends[within])
        np.add.at(spent, places[within[counts]], by_fetch[mine][counts])
    return np.minimum(spent, waited)
