"""The planner: which layouts of trainer and service a cluster can run, and which is the fastest.

Every result says why it has the place it has, and every layout that is not among the results has a reason.
"""

from art_topology.planner.explain import explain_layout
from art_topology.planner.results import (
    Plan,
    PlannedLayout,
    PlanReport,
    RejectedLayout,
    RejectionCount,
    Split,
)
from art_topology.planner.search import plan

__all__ = [
    "Plan",
    "PlanReport",
    "PlannedLayout",
    "RejectedLayout",
    "RejectionCount",
    "Split",
    "explain_layout",
    "plan",
]
