"""Which sample goes into which batch of which rank, as arithmetic. No I/O, no torch.

The names are imported at their first use: workers need the seeds, not the plan.
"""

from typing import TYPE_CHECKING

from headrace.core.lazy import importer

if TYPE_CHECKING:
    from headrace.plan.plan import Plan as Plan
    from headrace.plan.state import PlanState as PlanState

__all__ = ["Plan", "PlanState"]

__getattr__ = importer(__name__, {"Plan": "headrace.plan.plan", "PlanState": "headrace.plan.state"})
