"""Sizes of the model against the parallelism, of the trainer and of a service alike.

Sources: ``TransformerConfig.__post_init__``, ``MoELayer.__init__`` and ``tensor_parallel.utils`` of
megatron-core; ``ModelConfig.verify_with_parallel_config``, ``get_pp_indices`` and the layers' ``divide`` of
vLLM.
"""

from art_topology.passes.faults import Fault
from art_topology.passes.model_facts import ModelFacts

VLLM_VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of it before it divides (``DEFAULT_VOCAB_PADDING_SIZE``)."""


def tensor_faults(facts: ModelFacts, tp: int, path: str, *, padded: bool) -> list[Fault]:
    """What ``tp`` must divide: heads, the widths of MLPs, the vocabulary (``padded``: as vLLM pads it)."""
    found = []

    def fault(code: str, message: str) -> None:
        found.append(Fault(code=code, path=f"{path}.tp", message=message, fields=("tp",)))

    if heads := _undivided(facts.query_heads, tp):
        fault("ART-T801", f"tp={tp} does not divide the {heads} attention heads of the model")
    elif odd := [count for count in facts.kv_heads if count % tp and tp % count]:
        fault(
            "ART-T802",
            f"tp={tp} neither divides nor is a multiple of the {odd[0]} key-value heads of the model",
        )
    if width := _undivided(facts.mlp_widths, tp):
        fault("ART-T804", f"tp={tp} does not divide the MLP's width of {width}")
    padding = VLLM_VOCABULARY_PADDING if padded else 1
    size = -(-facts.vocab_size // padding) * padding
    if size % tp:
        what = f"the vocabulary of {facts.vocab_size} tokens"
        fault("ART-T805", f"tp={tp} does not divide {what}" + (f", padded to {size}" if padded else ""))
    return found


def linear_fault(facts: ModelFacts, parts: int, said: str, path: str, fields: tuple[str, ...]) -> list[Fault]:
    """Whether ``parts`` divides the heads of linear attention."""
    heads = _undivided(facts.linear_heads, parts)
    if heads is None:
        return []
    message = f"{said} does not divide the {heads} heads of linear attention"
    return [Fault(code="ART-T803", path=path, message=message, fields=fields)]


def _undivided(sizes: tuple[int, ...], parts: int) -> int | None:
    """The first size that ``parts`` does not divide."""
    return next((size for size in sizes if size % parts), None)


def undivided_expert(facts: ModelFacts, parts: int) -> int | None:
    """The width of a routed expert that ``parts`` does not divide."""
    return _undivided(facts.expert_widths, parts)
