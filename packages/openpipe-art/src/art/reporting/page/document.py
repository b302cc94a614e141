"""Puts a run's page together.

What always holds: the page is one file that loads nothing, and its policy forbids it to; the only script that
runs is the one of this package, named by its digest. Data is JSON in an element that is no script to a
browser, with `<`, `>` and `&` escaped, and the script shows it as text. The file appears by one rename.
"""

import base64
import hashlib
import html
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from art.reporting.page.figures import Figure, day, key_figures, whole_time
from art.reporting.page.load import TRAINING, PageError, Run, load_run
from art.reporting.page.samples import Samples, choose_samples
from art.reporting.run_folder import REPORT
from art.reporting.run_state import RunState, advice, headline, in_short, unfinished_text

_STYLES = ("page.css",)
_SCRIPTS = ("format.js", "plot.js", "plots.js", "tokens.js", "trajectories.js", "before.js", "page.js")
_CACHE_KEY = re.compile("-[0-9a-f]{32,}$")
"""At the end of a name of what lies in a cache by its content."""

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def write_report(folder: Path) -> Path:
    """Writes the page of the run in ``folder`` and returns where it is.

    Args:
        folder: a run's folder as :mod:`art.reporting.run_folder` describes it; the run may still go on.

    Raises:
        PageError: the folder is missing or no run's, a finished line cannot be read, or the page cannot be
            written; the text names the file.
    """
    run = load_run(folder)
    page = render(run, choose_samples(run.files))
    target = folder / REPORT
    aside = folder / f".{REPORT}.{os.getpid()}"
    try:
        try:
            aside.write_bytes(page)
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise PageError(f"{target} cannot be written: {error}") from error
    return target


def render(run: Run, samples: Samples) -> bytes:
    """The whole page, UTF-8."""
    style = _assets(_STYLES)
    script = _assets(_SCRIPTS)
    description = run.description
    return _filled(
        _asset("page.html"),
        {
            "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
            "base-uri 'none'; form-action 'none'",
            "name": _text(description.name),
            "model": _text(_CACHE_KEY.sub("", description.model)),
            "model_folder": _text(description.model_folder),
            "version": _text(description.art_version),
            "started": _text(day(description.started_unix_s)),
            "state": _text(in_short(run.state)),
            "ending": _ending(run.state),
            "figures": "".join(map(_figure, key_figures(run))),
            "settings": _settings(description.settings),
            "style": style,
            "script": script,
            "data": _embedded(_payload(run, samples)),
        },
    ).encode()


def _payload(run: Run, samples: Samples) -> dict[str, Any]:
    """What the page's script reads; metrics as columns, so that names are there once."""
    names = sorted({name for step in run.steps for name in step})
    summaries = [samples.summaries.get((TRAINING, int(step["step"] or 0))) for step in run.steps]
    return {
        "steps": {name: [step.get(name) for step in run.steps] for name in names},
        "summaries": summaries,
        "evaluations": run.evaluations,
        "phases": run.phases,
        "whole_s": whole_time(run),
        "shares": samples.shares(TRAINING, [int(step["step"] or 0) for step in run.steps]),
        "texts": samples.texts,
        "sets": samples.sets,
        "counts": {
            "total": samples.total,
            "shown": samples.shown,
            "tokens_kept": samples.tokens_kept,
            "tokens_shown": samples.tokens_shown,
            "files": len(run.files),
        },
    }


def _embedded(value: Any) -> str:
    """JSON that contains nothing a parser of HTML could take for markup."""
    text = msgspec.json.encode(value).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _text(value: str) -> str:
    """Text as HTML; characters that are not seen are written as their code."""
    return html.escape(_UNSEEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", value))


def _figure(figure: Figure) -> str:
    label, value, detail = map(_text, figure)
    return f"<div class=figure><dt>{label}</dt><dd class=value>{value}</dd><dd>{detail}</dd></div>"


def _ending(state: RunState) -> str:
    """Why the run is not finished and what to do next; nothing where all is well."""
    parts = []
    if state.message:
        parts.append(f"<pre class=text>{_lines(state.message)}</pre>")
    if state.unfinished:
        parts.append(f"<p>{_text(unfinished_text(state))}</p>")
    parts += [f"<p>{_text(remark)}.</p>" for remark in state.remarks]
    if state.resume is not None:
        parts.append(f"<p>{_text(advice(state))} <code>{_text(state.resume)}</code></p>")
    elif said := advice(state):
        parts.append(f"<p>{_text(said)}</p>")
    if state.state == "finished" and not parts:
        return ""
    title = headline(state)
    title = title[:1].upper() + title[1:]
    return f'<section class="ending {state.state}"><h2>{_text(title)}</h2>{"".join(parts)}</section>'


def _lines(text: str) -> str:
    return "\n".join(map(_text, text.splitlines()))


def _settings(settings: Mapping[str, Any]) -> str:
    def shown(value: Any) -> str:
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    return "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(shown(value))}</dd></div>" for name, value in settings.items()
    )


def _asset(name: str) -> str:
    return resources.files("art.reporting.page").joinpath("assets", name).read_text(encoding="utf-8")


def _assets(names: tuple[str, ...]) -> str:
    return "\n" + "\n".join(_asset(name) for name in names)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Replaces each ``{{name}}`` of the template, in one pass, so that none is looked for inside a value."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)
