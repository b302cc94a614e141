"""What can be known before anything is fetched or started: the machine, folders, packages, memory, prompts.

A :class:`Check` says what was found, what is needed and the next step. :func:`demo_checks` and
:func:`training_checks` collect those for a purpose, :func:`require` raises one error that lists all failures.
Importing this package loads the standard library and msgspec only.
"""

from art.checks.demo import demo_checks
from art.checks.hosts import host_checks, ports_check, runtime_checks
from art.checks.results import Check, State, failures, require, warnings
from art.checks.training import TrainingPlan, training_checks
from art.errors import PreflightError

__all__ = [
    "Check",
    "PreflightError",
    "State",
    "TrainingPlan",
    "demo_checks",
    "failures",
    "host_checks",
    "ports_check",
    "require",
    "runtime_checks",
    "training_checks",
    "warnings",
]
