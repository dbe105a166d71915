"""Which sample goes into which batch of which rank, as arithmetic. No I/O, no torch."""

from headrace.plan.plan import Plan
from headrace.plan.state import PlanState

__all__ = ["Plan", "PlanState"]
