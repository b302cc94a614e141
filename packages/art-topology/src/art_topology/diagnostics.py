"""What the compiler says: every rule has a stable code, every finding a place, the numbers and a way out."""

from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning"]

RULES: dict[str, str] = {
    "ART-F001": "a topology is a UTF-8 file whose suffix says its format",
    "ART-F002": "a topology file is well-formed",
    "ART-F003": "a key is given once",
    "ART-F004": "every field exists",
    "ART-F005": "no required field is missing",
    "ART-F006": "a value has the type of its field",
    "ART-F007": "a value is in the range of its field",
    "ART-F008": "a topology file is of a size and depth that a topology has",
    "ART-F009": "the configuration of the model can be read",
    "ART-T101": "host ids are unique",
    "ART-T102": "node ranks are 0, 1, 2 ... without gap or repetition",
    "ART-T103": "host addresses are unique",
    "ART-T104": "the controller runs on a host of the cluster",
    "ART-T105": "an address is an IP address or a host name",
    "ART-T106": "hosts of a cluster reach each other: no loopback or wildcard address",
    "ART-T107": "a GPU is listed once on its host",
    "ART-T108": "the UUID of a GPU or MIG slice is complete",
    "ART-T109": "a GPU is in one host",
    "ART-T110": "a host address belongs to one host: no multicast, broadcast or link-local address",
    "ART-T111": "the table of hardware has the GPUs of a host",
    "ART-T201": "a placement names a host of the cluster",
    "ART-T202": "a placement names GPUs of its host",
    "ART-T203": "a GPU belongs to one process",
    "ART-T204": "CPU slots are not given out twice",
    "ART-T205": "all processes of a workload run on the same kind of device",
    "ART-T206": "rollout workers need a free CPU slot",
    "ART-T207": "processes that communicate by NCCL run on whole GPUs",
    "ART-T208": "temporal sharing shares a GPU with the trainer",
    "ART-T301": "the trainer has one placement per host",
    "ART-T302": "every trainer host has equally many ranks",
    "ART-T303": "trainer placements follow the node order",
    "ART-T304": "pipeline stages divide the ranks",
    "ART-T305": "tensor and context parallelism divide the ranks of a stage",
    "ART-T306": "expert and expert tensor parallelism divide the ranks of a stage",
    "ART-T307": "virtual stages need pipeline stages",
    "ART-T308": "a microbatch group needs virtual stages and covers the pipeline",
    "ART-T309": "the ranks that divide a matrix are on one host",
    "ART-T310": "sequence parallelism needs tensor parallelism",
    "ART-T311": "experts under tensor parallelism need sequence parallelism",
    "ART-T312": "a pipeline layout can be read and fills the pipeline",
    "ART-T313": "layers are divided into stages in one way",
    "ART-T314": "the first and last stage are two, with equally many layers in each virtual stage",
    "ART-T315": "the trainer's hosts have the same GPUs",
    "ART-T401": "service names are unique",
    "ART-T402": "every member of a service has a host of its own",
    "ART-T403": "every member of a service has equally many workers",
    "ART-T404": "a service has as many workers as its parallelism needs",
    "ART-T405": "vLLM accepts the LoRA rank",
    "ART-T406": "a member holds whole replicas of the model, or a replica whole members",
    "ART-T407": "the workers that divide a matrix are on one host",
    "ART-T408": "it is known which services serve the model",
    "ART-T501": "an endpoint that other hosts dial is not on loopback",
    "ART-T502": "an endpoint can be dialed",
    "ART-T503": "an endpoint is on the host that listens",
    "ART-T504": "two listeners of a host have different ports",
    "ART-T505": "an endpoint that is run elsewhere has a port",
    "ART-T506": "ports that follow a fixed port exist",
    "ART-T601": "GPU workloads that span hosts name their NCCL network",
    "ART-T602": "NCCL does not fall back to sockets",
    "ART-T603": "the name of an NCCL network is one word",
    "ART-T701": "experts that are dispatched between hosts travel by NIXL",
    "ART-T801": "tensor parallelism divides the attention heads",
    "ART-T802": "tensor parallelism divides the key-value heads, or they divide it",
    "ART-T803": "parallelism divides the heads of linear attention",
    "ART-T804": "tensor parallelism divides the width of an MLP",
    "ART-T805": "tensor parallelism divides the vocabulary",
    "ART-T806": "expert parallelism needs experts",
    "ART-T807": "expert parallelism divides the experts",
    "ART-T808": "tensor parallelism divides the width of an expert",
    "ART-T809": "layers fill the pipeline stages",
    "ART-T810": "a pipeline layout holds the layers of the model",
    "ART-T811": "requests are no longer than the model's positions",
    "ART-T812": "experts with biases are not divided by expert tensor parallelism",
    "ART-T813": "a prompt and its completion are within the model's positions",
    "ART-T814": "a service says of its weights what the model's configuration says",
    "ART-T815": "it is known how a service's weights are stored",
    "ART-T816": "tensor parallelism leaves whole blocks of quantized weights",
    "ART-T901": "context and sequence parallelism divide a packed row",
    "ART-T902": "a row holds a prompt and its completion",
    "ART-T903": "a service takes a prompt and its completion",
    "ART-T904": "a service takes the adapter that is trained",
    "ART-T905": "every data-parallel rank gets a row",
    "ART-T906": "the microbatches of a step fill the microbatch groups",
    "ART-T907": "layers are recomputed under full recomputation, at most those of a stage",
    "ART-T908": "a group has completions to compare",
    "ART-T909": "a trainer rank fits the memory of its GPU",
    "ART-T910": "a trainer rank leaves some memory of its GPU free",
    "ART-T911": "a worker of a service fits the memory of its GPU, with a sequence",
    "ART-T912": "a worker of a service has memory for more than a sequence",
}
"""Every code the compiler can report, with the rule it stands for. A code never changes its meaning."""

WARNINGS = frozenset(
    {
        "ART-T111",
        "ART-T206",
        "ART-T207",
        "ART-T208",
        "ART-T309",
        "ART-T315",
        "ART-T407",
        "ART-T408",
        "ART-T813",
        "ART-T814",
        "ART-T815",
        "ART-T905",
        "ART-T906",
        "ART-T908",
        "ART-T910",
        "ART-T912",
    }
)
"""The codes that are only worth a second look; all others refuse the topology."""

_SHOWN_BLOCKS = 100
_SHOWN_COLUMNS = 160


def severity_of(code: str) -> Severity:
    """Whether the code refuses the topology ("error") or is only worth a second look ("warning")."""
    return "warning" if code in WARNINGS else "error"


class SourceLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a file.

    Args:
        file: The file as it was named; None for text that was not read from a file.
        line: The line, from 1.
        column: The character in the line, from 1.
        width: How many characters from there on are meant; 0 for a place between characters.
        text: The line itself, without its end; empty if it is too long to be shown.
    """

    file: str | None
    line: int
    column: int
    width: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{'input' if self.file is None else printable(self.file)}:{self.line}:{self.column}"

    def excerpt(self) -> list[str]:
        """The line (160 characters at most) with carets below what is meant; nothing of an empty line."""
        if not self.text:
            return []
        begin = max(0, self.column - 1 - _SHOWN_COLUMNS // 2) if len(self.text) > _SHOWN_COLUMNS else 0
        shown = self.text[begin : begin + _SHOWN_COLUMNS]
        before, marked = self.text[begin : self.column - 1], self.text[self.column - 1 :][: self.width]
        margin = " " * len(str(self.line))
        carets = "^" * max(1, min(_cells(marked), _cells(shown) - _cells(before)))
        return [
            f"{margin} |",
            f"{self.line} | {printable(shown)}",
            f"{margin} | {' ' * _cells(before)}{carets}",
        ]


def printable(text: str) -> str:
    """``text`` with every control character replaced, so that it cannot steer a terminal: as many cells."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _cells(text: str) -> int:
    """How many columns of a terminal ``text`` takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One finding.

    Args:
        code: A key of ``RULES``.
        severity: Whether the topology is refused ("error") or only worth a second look ("warning").
        path: Where in the input, such as ``cluster.hosts[1].address``; empty for the input as a whole.
        message: What is wrong, with the numbers.
        hint: What to do about it.
        related: Other places in the input that take part.
        suggestion: A path and the value that would clear this finding there, as JSON has it; None leaves the
            field out. Not every finding has one: nobody can know another host's address.
        location: Where in the file, if it came from one.
        related_locations: The places of ``related``, one each, if it came from a file.
    """

    code: str
    severity: Severity
    path: str
    message: str
    hint: str
    related: tuple[str, ...] = ()
    suggestion: tuple[str, Any] | None = None
    location: SourceLocation | None = None
    related_locations: tuple[SourceLocation, ...] = ()

    def render(self) -> str:
        """A block of lines for a terminal or a log."""
        lines = [f"{self.severity}[{self.code}]: {printable(self.message)}"]
        path = printable(self.path)
        if self.location is None:
            lines.append(f"  --> {path or 'the input'}")
        else:
            lines.append(f"  --> {self.location}{f' ({path})' if path else ''}")
            lines += [f"  {line}".rstrip() for line in self.location.excerpt()]
        if self.related_locations:
            placed = zip(self.related, self.related_locations, strict=True)
            lines += [f"   :: {location} ({printable(related)})" for related, location in placed]
        else:
            lines += [f"   :: {printable(related)}" for related in self.related]
        lines.append(f"  help: {printable(self.hint)}")
        return "\n".join(lines)


def rendered(diagnostics: tuple[Diagnostic, ...], subject: str = "the topology") -> str:
    """All findings as one text, at most a hundred of them spelled out."""
    errors = sum(found.severity == "error" for found in diagnostics)
    warnings = len(diagnostics) - errors
    counts = [_counted(errors, "error")] if errors or not warnings else []
    counts += [_counted(warnings, "warning")] if warnings else []
    blocks = [found.render() for found in diagnostics[:_SHOWN_BLOCKS]]
    if len(diagnostics) > _SHOWN_BLOCKS:
        blocks.append(f"... and {len(diagnostics) - _SHOWN_BLOCKS} more")
    return "\n\n".join([f"{subject} has {' and '.join(counts)}", *blocks])


class TopologyError(ValueError):
    """The topology cannot run. Its text is all diagnostics, to be shown as it is.

    Args:
        diagnostics: Everything found, errors and warnings, in the order of the checks.
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(diagnostics)
        self.diagnostics = diagnostics

    def __str__(self) -> str:
        return rendered(self.diagnostics)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
