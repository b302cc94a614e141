"""For every rule an input that breaks it alone, and one that keeps it: ``docs/diagnostics.md``."""

from art_topology.rule_examples.example import RuleExample
from art_topology.rule_examples.files import FILE_EXAMPLES
from art_topology.rule_examples.hosts import HOST_EXAMPLES
from art_topology.rule_examples.models import MODEL_EXAMPLES
from art_topology.rule_examples.services import SERVICE_EXAMPLES
from art_topology.rule_examples.trainer import TRAINER_EXAMPLES

__all__ = ["EXAMPLES", "RuleExample"]

EXAMPLES: dict[str, RuleExample] = {
    found.code: found
    for found in (
        *FILE_EXAMPLES,
        *HOST_EXAMPLES,
        *TRAINER_EXAMPLES,
        *SERVICE_EXAMPLES,
        *MODEL_EXAMPLES,
    )
}
"""By code, in ascending order."""
