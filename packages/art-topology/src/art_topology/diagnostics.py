"""What the compiler says: every rule has a stable code, every finding a place, the numbers and a way out."""

from typing import Literal

import msgspec

Severity = Literal["error", "warning"]

RULES: dict[str, str] = {
    "ART-T101": "host ids are unique",
    "ART-T102": "node ranks are 0, 1, 2 ... without gap or repetition",
    "ART-T103": "host addresses are unique",
    "ART-T104": "the controller runs on a host of the cluster",
    "ART-T105": "an address is an IP address or a host name",
    "ART-T106": "hosts of a cluster reach each other: no loopback or wildcard address",
    "ART-T107": "a GPU is listed once on its host",
    "ART-T201": "a placement names a host of the cluster",
    "ART-T202": "a placement names GPUs of its host",
    "ART-T203": "a GPU belongs to one process",
    "ART-T204": "CPU slots are not given out twice",
    "ART-T205": "all processes of a workload run on the same kind of device",
    "ART-T206": "rollout workers need a free CPU slot",
    "ART-T301": "the trainer has one placement per host",
    "ART-T302": "every trainer host has equally many ranks",
    "ART-T303": "trainer placements follow the node order",
    "ART-T304": "pipeline stages divide the ranks",
    "ART-T305": "tensor and context parallelism divide the ranks of a stage",
    "ART-T306": "expert and expert tensor parallelism divide the ranks of a stage",
    "ART-T307": "virtual stages need pipeline stages",
    "ART-T308": "a microbatch group needs virtual stages and covers the pipeline",
    "ART-T401": "service names are unique",
    "ART-T402": "every member of a service has a host of its own",
    "ART-T403": "every member of a service has equally many workers",
    "ART-T404": "a service has as many workers as its parallelism needs",
    "ART-T405": "vLLM accepts the LoRA rank",
    "ART-T501": "an endpoint that other hosts dial is not on loopback",
    "ART-T502": "an endpoint can be dialed",
    "ART-T503": "an endpoint is on the host that listens",
    "ART-T504": "two listeners of a host have different ports",
    "ART-T505": "an endpoint that is run elsewhere has a port",
    "ART-T601": "GPU workloads that span hosts name their NCCL network",
    "ART-T602": "NCCL does not fall back to sockets",
    "ART-T603": "the name of an NCCL network is one word",
    "ART-T701": "experts that are dispatched between hosts travel by NIXL",
}
"""Every code the compiler can report, with the rule it stands for. A code never changes its meaning."""


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One finding.

    Args:
        code: A key of ``RULES``.
        severity: Whether the topology is refused ("error") or only worth a second look ("warning").
        path: Where in the input, such as ``cluster.hosts[1].address``.
        message: What is wrong, with the numbers.
        hint: What to do about it.
        related: Other places in the input that take part.
    """

    code: str
    severity: Severity
    path: str
    message: str
    hint: str
    related: tuple[str, ...] = ()

    def render(self) -> str:
        """A block of lines for a terminal or a log."""
        lines = [f"{self.severity}[{self.code}]: {self.message}", f"  --> {self.path}"]
        lines += [f"   :: {path}" for path in self.related]
        lines.append(f"  help: {self.hint}")
        return "\n".join(lines)


class TopologyError(ValueError):
    """The topology cannot run. Its text is all diagnostics, to be shown as it is.

    Args:
        diagnostics: Everything found, errors and warnings, in the order of the checks.
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(diagnostics)
        self.diagnostics = diagnostics

    def __str__(self) -> str:
        errors = sum(found.severity == "error" for found in self.diagnostics)
        warnings = len(self.diagnostics) - errors
        counts = [_counted(errors, "error")] + ([_counted(warnings, "warning")] if warnings else [])
        blocks = [found.render() for found in self.diagnostics]
        return "\n\n".join([f"the topology has {' and '.join(counts)}", *blocks])


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
