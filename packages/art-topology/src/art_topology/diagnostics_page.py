"""Makes ``docs/diagnostics.md``: ``python -m art_topology.diagnostics_page docs/diagnostics.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from art_topology.diagnostics import Diagnostic, TopologyError, severity_of
from art_topology.files import read_topology, read_topology_text
from art_topology.readers import FORMATS
from art_topology.rule_examples import EXAMPLES, RuleExample
from art_topology.spec import SpecError

_INTRODUCTION = """# Diagnostics

What `compile_topology` and the readers of files can report, each with an input that breaks the rule, what is
then said, and an input that keeps it. A code never changes its meaning. Errors refuse the topology; warnings
stay on it as `RuntimeTopology.warnings`. All of them are data as well: `TopologyError.diagnostics` and
`SpecError.diagnostics` have code, severity, path, message, hint, a value that would work where there is one
(`suggestion`), and for files the line and column.

This page is made from the code by `python -m art_topology.diagnostics_page docs/diagnostics.md`; every pair
below is a test.
"""

_SECTIONS = {
    "ART-F0": "Files",
    "ART-T1": "Hosts",
    "ART-T2": "Placement",
    "ART-T3": "Trainer",
    "ART-T4": "Services",
    "ART-T5": "Endpoints and ports",
    "ART-T6": "NCCL",
    "ART-T7": "NIXL",
    "ART-T8": "Sizes of the model",
    "ART-T9": "Lengths of the workload",
}


def diagnose(text: str, file: str = "cluster.toml") -> tuple[Diagnostic, ...]:
    """Everything that is said about the text of a file, warnings included; empty if nothing is.

    Args:
        text: What the file holds, in TOML.
        file: Its name; with a suffix of no format, that is what is reported.
    """
    try:
        if Path(file).suffix not in FORMATS:
            read_topology(file)
        return read_topology_text(text, "toml", name=file).compile().warnings
    except (SpecError, TopologyError) as error:
        return error.diagnostics


def page() -> str:
    """The whole page, in Markdown."""
    parts = [_INTRODUCTION, _table()]
    section = ""
    for code, example in EXAMPLES.items():
        if code[:6] != section:
            section = code[:6]
            parts.append(f"## {_SECTIONS[section]}\n")
        parts.append(_entry(example))
    return "\n".join(parts)


def _table() -> str:
    rows = [
        f"| [{code}](#{code.lower()}) | {severity_of(code)} | {example.rule} |"
        for code, example in EXAMPLES.items()
    ]
    return "\n".join(["| Code | Severity | Rule |", "|---|---|---|", *rows, ""])


def _entry(example: RuleExample) -> str:
    said = "\n\n".join(found.render() for found in diagnose(example.failing, example.file))
    sentence = example.rule[0].upper() + example.rule[1:]
    named = "" if example.file == "cluster.toml" else f" in a file named `{example.file}`"
    return f"""### {example.code}

{sentence} ({severity_of(example.code)}). {example.why}

Refused{named}:

```toml
{example.failing.rstrip()}
```

```text
{said}
```

Accepted{"" if not named else " in `cluster.toml`"}:

```toml
{example.passing.rstrip()}
```
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
