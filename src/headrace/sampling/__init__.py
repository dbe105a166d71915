"""Which sample goes into which batch of which rank, as arithmetic.

No I/O, no torch. The names are imported at their first use: workers need the seeds, not the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_importer

if TYPE_CHECKING:
    from headrace.sampling.plan import Plan as Plan
    from headrace.sampling.plan import PlanState as PlanState

__all__ = ["Plan", "PlanState"]

__getattr__ = lazy_importer(
    __name__, {"Plan": "headrace.sampling.plan", "PlanState": "headrace.sampling.plan"}
)
