"""The checks of this repository, one session each; ``uv run nox`` runs all but ``gpu``, ``soak``, ``chaos``
and ``accuracy``.

Every package is tested in an environment of its own that holds what the package declares and its ``test``
group, so a dependency that is used but not declared fails here. A skipped test fails its session.
"""

import os
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = ("art-topology", "art-dataplane", "art-kernels", "art-trainer", "art-serving", "openpipe-art")
MODULES = {name: name.replace("-", "_") for name in PACKAGES} | {"openpipe-art": "art"}

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", *PACKAGES, "docs", "build", "integration", "guide", "demo"]


def sync(session: nox.Session, *arguments: str) -> None:
    """Installs locked dependencies into the session's environment and nothing else."""
    session.run_install(
        "uv", "sync", "--locked", "--no-default-groups", *arguments,
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location, "UV_PYTHON": session.virtualenv.location},
        silent=True,
    )  # fmt: skip
    # Bytecode is written on first import: the slow imports of torch and megatron-core are paid once.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""


def pytest(session: nox.Session, *arguments: str) -> None:
    """Runs pytest and fails on a skipped test as on a failed one."""
    report = Path(session.virtualenv.location).resolve() / "junit.xml"
    session.run("python", "-m", "pytest", "-q", f"--junitxml={report}", *arguments, *session.posargs)
    suites = ElementTree.parse(report).getroot()
    skipped = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suites.iter("testcase")
        if case.find("skipped") is not None
    ]
    if skipped:
        session.error(
            f"{len(skipped)} tests were skipped, and a skip is a failure here: {', '.join(skipped)}"
        )


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting and the direction of imports."""
    sync(session, "--group", "lint", "--all-packages")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Strict types in every package."""
    sync(session, "--group", "types", "--all-packages", "--all-extras")
    session.run("mypy", *(f"packages/{name}/src" for name in PACKAGES))
    for example in ("examples/yes_no_maybe/train.py", "examples/calculator/train.py"):
        session.run("mypy", example)


def test_package(session: nox.Session, name: str) -> None:
    """Runs one package's tests in its own environment."""
    sync(session, "--package", name, "--group", "test")
    session.run("python", "-c", f"import {MODULES[name]}")
    pytest(session, f"packages/{name}/tests")


for _name in PACKAGES:
    nox.session(lambda session, name=_name: test_package(session, name), name=_name)


@nox.session
def integration(session: nox.Session) -> None:
    """What crosses packages: the loop on a tiny model, failures, the runtime, parity on the real model."""
    sync(session, "--group", "integration")
    apart = ("demo", "docs", "examples", "guide")
    pytest(session, "tests", *(f"--ignore=tests/{folder}" for folder in apart))


@nox.session
def guide(session: nox.Session) -> None:
    """The guide, step by step as it is written, and the examples, on the real model."""
    sync(session, "--group", "integration")
    pytest(session, "tests/guide", "tests/examples")


@nox.session
def docs(session: nox.Session) -> None:
    """Every public name is documented, and the documentation builds without a warning."""
    # ruff lays the signatures out.
    sync(session, "--group", "docs", "--group", "lint", "--all-packages", "--all-extras")
    session.env["NO_MKDOCS_2_WARNING"] = "1"
    session.run("python", "tools/check_docstrings.py")
    site = Path(session.virtualenv.location).resolve() / "site"
    session.run("mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site))
    pytest(session, "tests/docs")


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """``art demo`` with five seeds of five; writes the table of ``docs/soak.md``. Some ten minutes."""
    sync(session, "--group", "integration")
    runs = Path(session.create_tmp()).resolve() / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    session.env.pop("TMPDIR", None)  # create_tmp sets it, and Unix sockets would not fit into its path
    session.run("python", "tools/soak.py", "--runs", str(runs), "--table", "docs/soak.md", *session.posargs)


@nox.session(default=False)
def accuracy(session: nox.Session) -> None:
    """The planner's predictions beside published measurements; writes ``docs/planner-accuracy.md``."""
    sync(session, "--package", "art-topology")
    session.chdir("packages/art-topology")
    session.run("python", "-m", "accuracy", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """``art demo`` itself, in a memory cgroup of 12 GiB, with its reward and its time checked."""
    sync(session, "--group", "integration")
    pytest(session, "tests/demo")


@nox.session
def build(session: nox.Session) -> None:
    """Builds every wheel and sdist and imports each from the built files in an empty environment."""
    dist = Path(session.virtualenv.location).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("uv", "build", "--all-packages", "--out-dir", str(dist), external=True, silent=True)
    constraints = dist / "constraints.txt"
    session.run(
        "uv", "export", "--locked", "--all-packages", "--all-extras", "--no-emit-workspace", "--no-hashes",
        "--no-annotate", "--no-header", "--output-file", str(constraints), external=True, silent=True,
    )  # fmt: skip
    siblings = {
        "art-trainer": ("art-topology", "art-dataplane", "art-kernels"),
        "art-serving": ("art-topology", "art-dataplane"),
        "openpipe-art": ("art-topology", "art-dataplane"),
    }
    for kind in ("whl", "tar.gz"):
        for name in PACKAGES:
            files = [_built(dist, wanted, kind) for wanted in (*siblings.get(name, ()), name)]
            python = _empty_environment(session, dist / f"env-{name}-{kind}")
            # The base facade takes the newest of everything; the rest the locked versions, torch above all.
            pins = (
                () if name in ("openpipe-art", "art-topology", "art-dataplane") else ("-c", str(constraints))
            )
            session.run("uv", "pip", "install", "--quiet", "--python", python, *pins, *files, external=True)
            session.run(python, "-c", f"import {MODULES[name]}", external=True)
            if name == "openpipe-art":
                session.run(python, "-c", _LIGHT_FACADE, external=True)
            shutil.rmtree(Path(python).parents[1])


_LIGHT_FACADE = """
import importlib.util, sys
import art, numpy
assert importlib.util.find_spec("torch") is None, "the base facade must not bring torch"
assert not {"monarch", "transformers", "torch"} & set(sys.modules)
assert art.Trajectory and art.TrajectoryGroup and art.TrainableModel
print("openpipe-art", art.__version__, "with numpy", numpy.__version__)
"""


def _built(dist: Path, name: str, kind: str) -> str:
    stem = name.replace("-", "_")
    pattern = f"{stem}-*.whl" if kind == "whl" else f"{stem}-*.tar.gz"
    (path,) = dist.glob(pattern)
    return str(path)


def _empty_environment(session: nox.Session, path: Path) -> str:
    session.run(
        "uv", "venv", "--quiet", "--clear", "--python", session.virtualenv.location, str(path), external=True
    )
    return str(path / "bin" / "python")


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """What needs a CUDA device; run by hand on a machine that has one."""
    sync(session, "--group", "integration")
    if not os.path.exists("/dev/nvidiactl"):
        session.error("no NVIDIA device on this machine: there is nothing to run the tests on")
    pytest(session, "tests_gpu")


@nox.session(default=False)
def chaos(session: nox.Session) -> None:
    """Five minutes of killed owners, packers, receivers and consumers; nothing may be lost or left."""
    sync(session, "--group", "integration")
    session.run("python", "-m", "chaos", *session.posargs, env={"PYTHONPATH": "tests"})
