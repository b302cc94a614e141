"""Whether what a service says of its weights is what the model's configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from art_topology.passes.findings import Findings, joined

if TYPE_CHECKING:
    from art_topology.models import ModelDescription
    from art_topology.passes.services import ServedModel
    from art_topology.serving import ModelServiceSpec

_PLAIN = "unquantized"


def check_served_weights(
    services: Sequence[ModelServiceSpec],
    served: ServedModel,
    model: ModelDescription | None,
    findings: Findings,
) -> None:
    """Checks the services of the model. What is in a folder of its own (``model_path``) may be stored in
    another form than the configuration says."""
    if model is None or model.quantization is None:
        return
    known = model.quantization
    for k, service in enumerate(services):
        path = f"services[{k}].weights"
        if not served.is_by(service):
            continue
        if known.unread:
            if service.weights == "auto":
                findings.report(
                    "ART-T815",
                    path,
                    f"the model's config.json does not say how the weights of service {service.name!r} are "
                    f"stored: {known.unread} in {known.source}; they are planned unquantized",
                    f'say it, such as weights = "int4", or weights = "{_PLAIN}" if they are not quantized',
                    ["model"],
                    (path, _PLAIN),
                )
        elif service.weights not in ("auto", *known.names) and service.model_path is None:
            findings.report(
                "ART-T814",
                path,
                f"service {service.name!r} says that its weights are {service.weights}, but the model's "
                f"config.json says {joined(known.names)} ({known.source}), and vLLM loads what is there",
                'leave weights out (or "auto"), or say with model_path which folder has the other weights',
                ["model"],
                (path, "auto"),
            )
