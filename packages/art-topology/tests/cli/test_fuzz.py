"""Whatever is put in, an exit code comes out and never an exception."""

import contextlib
import io
import json
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from art_topology.command import run
from art_topology.commands.template import topology_text

CODES = {0, 1, 2}
MOST_BYTES = 3 * 2**30
"""Address space of this process; all of the package's tests together take a tenth of it."""


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """An input that takes gigabytes fails here, with what it is, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        where = Path(folder)
        (where / "good.toml").write_text(topology_text(2, 4, gpu_model="H200"))
        (where / "cpu.toml").write_text(topology_text(1, 0))
        values = msgspec.toml.decode((where / "good.toml").read_text())
        (where / "good.json").write_bytes(msgspec.json.encode(values))
        yield where


def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    reader = io.TextIOWrapper(io.BytesIO(stdin))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", reader)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(arguments)
    return code, out.getvalue(), err.getvalue()


def fine(arguments: list[str], stdin: bytes = b"") -> int:
    code, out, err = call(*arguments, stdin=stdin)
    assert code in CODES, (code, out, err)
    assert out or err, arguments
    if "--json" in arguments and "--help" not in arguments and "-h" not in arguments:
        if out:
            json.loads(out)
        else:
            assert code == 2
    return code


COMMANDS = (
    ["check"],
    ["explain"],
    ["explain", "--rank", "0"],
    ["groups"],
    ["groups", "--family", "dp"],
    ["render", "-o", "out.svg"],
    ["diff", "good.toml"],
    ["plan", "--model", "config.json", "--gpu", "H200", "--cluster"],
)
FORMATS = st.sampled_from(["toml", "yaml", "json"])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200), kind=FORMATS, command=st.sampled_from(COMMANDS), as_json=st.booleans())
def test_random_bytes(place: Path, data: bytes, kind: str, command: list[str], as_json: bool) -> None:
    (place / f"fuzz.{kind}").write_bytes(data)
    more = ["--json"] if as_json else []
    assert fine([*command, f"fuzz.{kind}", *more]) != 0
    fine([*command, "-", "--format", kind, *more], stdin=data)


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """A text of which pieces are left out, repeated, moved or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(["drop", "twice", "number", "text", "line"]))
        if kind == "drop":
            text = text[:at] + text[end:]
        elif kind == "twice":
            text = text[:end] + text[at:end] + text[end:]
        elif kind == "number":
            digits = [index for index, letter in enumerate(text) if letter.isdigit()]
            if digits:
                spot = digits[at % len(digits)]
                number = draw(
                    st.sampled_from(["0", "-1", "3", "16", "1e400", "true", "99999999999999999999", '"x"'])
                )
                text = text[:spot] + number + text[spot + 1 :]
        elif kind == "text":
            text = text[:at] + draw(st.text(max_size=8)) + text[end:]
        else:
            lines = text.split("\n")
            spot = at % len(lines)
            lines.insert(spot, lines.pop(draw(st.integers(0, len(lines) - 1))))
            text = "\n".join(lines)
    return text


GOOD = topology_text(2, 4, gpu_model="H200")
GOOD_LINES = "\n".join(line for line in GOOD.split("\n") if line and not line.startswith("#"))


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=mutated(GOOD_LINES), command=st.sampled_from(COMMANDS[:-1]), as_json=st.booleans())
def test_mutated_files(place: Path, text: str, command: list[str], as_json: bool) -> None:
    (place / "mutated.toml").write_text(text, encoding="utf-8", errors="replace")
    fine([*command, "mutated.toml", *(["--json"] if as_json else [])])


CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1024, "moe_intermediate_size": 256,
    "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 600),
    st.sampled_from([16_385, 70_000, 2**31, 2**63, 10**30, 1e30]),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    changes=st.dictionaries(
        st.sampled_from([*CONFIG, "layer_types", "rope_scaling", "text_config"]), VALUES, max_size=3
    ),
    gpus=st.integers(1, 4),
)
@example(changes={"num_hidden_layers": 16_384, "max_position_embeddings": 70_000}, gpus=2)
def test_models_that_are_odd(place: Path, changes: dict[str, object], gpus: int) -> None:
    (place / "odd.json").write_text(json.dumps(CONFIG | changes))
    fine(["plan", "--model", "odd.json", "--gpu", "H200", "--gpus", str(gpus), "--groups", "2", "--json"])
    fine(["explain", "good.toml", "--rank", "1", "--model", "odd.json", "--json"])
    fine(["explain", "good.toml", "--rank", "1", "--model", "odd.json"])


WORDS = st.one_of(
    st.sampled_from(
        [
            "check",
            "plan",
            "explain",
            "groups",
            "render",
            "schema",
            "diff",
            "init",
            "good.toml",
            "cpu.toml",
            "good.json",
            "x.toml",
            "x.svg",
            "-",
            "--",
            "--json",
            "--strict",
            "--format",
            "toml",
            "json",
            "--rank",
            "0",
            "1",
            "-1",
            "99",
            "--family",
            "tp",
            "dp",
            "--limit",
            "--hosts",
            "0-1",
            "1,0",
            "3-1",
            "-o",
            "--output",
            "--title",
            "--model",
            "--cluster",
            "--gpu",
            "H200",
            "--gpus",
            "--gpus-per-host",
            "2",
            "--network",
            "--workload",
            "--hardware",
            "--force",
            "--cpu",
            "--why",
            "--rejected",
            "--help",
            "-h",
            "--version",
        ]
    ),
    st.text(max_size=6),
)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(WORDS, max_size=7))
def test_random_options(place: Path, words: list[str]) -> None:
    # Names of files that would be written outside the folder, or take the examples away.
    if any("/" in word or "\0" in word for word in words) or ("init" in words and "--force" in words):
        return
    before = (place / "good.toml").read_text()
    fine(words)
    assert (place / "good.toml").read_text() == before


OPTIONS = [
    "--rank",
    "--family",
    "--limit",
    "--hosts",
    "--title",
    "--model",
    "--workload",
    "--gpu",
    "--hardware",
    "--network",
    "--why",
    "--choose",
    "--dtype",
    "--lora-rank",
    "--format",
]
GIVEN = st.one_of(
    st.integers(-5, 10**12).map(str), st.text(max_size=10), st.sampled_from(["good.toml", ".", "toml"])
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    command=st.sampled_from(["explain", "groups", "render", "plan"]),
    options=st.lists(st.tuples(st.sampled_from(OPTIONS), GIVEN), max_size=3),
)
def test_random_values_of_options(place: Path, command: str, options: list[tuple[str, str]]) -> None:
    words = [part for name, value in options for part in (name, value)]
    file = ["--cluster", "good.toml"] if command == "plan" else ["good.toml"]
    fine([command, *file, *words])
