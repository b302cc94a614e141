"""What is in the caches already, what must still be fetched and built, and whether there is room for it.

What is cached is asked of those who own the caches: :mod:`art_serving` for vLLM's environment,
:mod:`art.demo.model` for the demo's model. Nothing is fetched here.
"""

import importlib.util
import os
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from art.checks import machine
from art.checks.hosts import folder_check
from art.checks.packages import PYTHON_REMEDY
from art.checks.results import Check, State, failed, passed, warned
from art.checks.sizes import disk_size

CACHE_VARIABLE = "ART_CACHE_DIR"
RUNTIME_VARIABLE = "ART_VLLM_RUNTIME_BIN"

VLLM_BYTES = 6_300_000_000
"""vLLM's environment for CPUs: 6.27 GB in 175 packages, of which all but 0.1 GB (bytecode) are hard links to
uv's cache when that is on the same file system."""
TORCH_FETCHED_BYTES = 2_730_000_000
"""torch for Linux as the package index has it: a wheel of 0.53 GB, and 2.2 GB of CUDA libraries and Triton,
which it depends on with a GPU or without. ART's own installation and vLLM's environment take the same."""
VLLM_FETCHED_BYTES = 3_170_000_000
"""The wheels of vLLM's environment: torch's, and 0.4 GB that ART's own installation does not leave in uv's
cache."""
MODEL_FETCHED_BYTES = 110_000_000
VLLM_OWN_BYTES = 300_000_000
"""What a build writes when uv's cache has every package: bytecode, sources, uv's temporary files."""
VLLM_FETCHED_TEXT = (
    f"{disk_size(VLLM_FETCHED_BYTES - TORCH_FETCHED_BYTES)} (or {disk_size(VLLM_FETCHED_BYTES)}, where uv's "
    "cache lacks torch and its CUDA libraries)"
)
MODEL_BYTES = 800_000_000
"""SmolLM2-135M-Instruct: a package of 98 MB, 160 MB of packages that convert it, and 540 MB of weights."""


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is fetched or built once and stays cached.

    Args:
        name: for people.
        folder: where it is, or will be; None when it is made elsewhere or cannot be known yet.
        cached: whether it is there.
        disk_bytes: that making it writes; 0 when it is there.
        through_uv: whether these bytes go through uv's cache.
        fetched: how much comes from the package index, for people; empty when it is there.
        problem: why it can neither be used nor made.
    """

    name: str
    folder: Path | None
    cached: bool
    disk_bytes: int
    through_uv: bool = True
    problem: str = ""
    fetched: str = ""


def cache_folder() -> Path:
    """``ART_CACHE_DIR``, or ``~/.cache/art``; absolute, also where the variable or ``HOME`` is not."""
    named = os.environ.get(CACHE_VARIABLE)
    return (Path(named).expanduser() if named else Path.home() / ".cache" / "art").absolute()


def uv_cache_folder() -> Path:
    """Where uv keeps packages: ``UV_CACHE_DIR``, or ``uv`` in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get("UV_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "uv"


def vllm_runtime() -> Fetched:
    """vLLM's environment of the installed ``art-serving``."""
    name = "vLLM for CPUs"
    if importlib.util.find_spec("art_serving") is None:
        return Fetched(name=name, folder=None, cached=False, disk_bytes=VLLM_BYTES)
    from art_serving import EnvironmentBuildError, find_environment, vllm_bundle
    from art_serving.vllm_runtime import runtime_from_variable

    named = os.environ.get(RUNTIME_VARIABLE)
    try:
        found = runtime_from_variable(named) if named else find_environment(vllm_bundle(), cache_folder())
    except EnvironmentBuildError as error:
        return Fetched(name=name, folder=None, cached=False, disk_bytes=0, problem=str(error))
    if found is not None:
        return Fetched(name=name, folder=found.path, cached=True, disk_bytes=0)
    return Fetched(
        name=name,
        folder=cache_folder() / "environments",
        cached=False,
        disk_bytes=VLLM_BYTES,
        fetched=VLLM_FETCHED_TEXT,
    )


def runtime_python_check() -> Check:
    """Whether vLLM's environment can be made with this Python, by the locked project's own word."""
    version = machine.python_version()
    if version.startswith("3.12."):  # what the lock was made for; reading it takes long
        return passed("Python of vLLM", version, "3.12")
    from packaging.specifiers import SpecifierSet

    from art_serving import EnvironmentBuildError, vllm_bundle

    try:
        bundle = vllm_bundle()
        project = tomllib.loads((bundle.root / bundle.project / "pyproject.toml").read_text())["project"]
    except (EnvironmentBuildError, OSError) as error:
        return failed("Python of vLLM", str(error), remedy="install a released art-serving")
    needed = str(project["requires-python"])
    if os.environ.get(RUNTIME_VARIABLE) or SpecifierSet(needed).contains(version, prereleases=True):
        return passed("Python of vLLM", version, needed)
    return failed("Python of vLLM", version, needed, PYTHON_REMEDY)


def demo_model() -> Fetched:
    """The demo's own model."""
    from art.demo import model

    entry = cache_folder() / "models" / f"{model.NAME}-{model._key()}"
    cached = model._problem(entry) is None
    return Fetched(
        name="model SmolLM2-135M-Instruct",
        folder=entry,
        cached=cached,
        disk_bytes=0 if cached else MODEL_BYTES,
        fetched="" if cached else disk_size(MODEL_FETCHED_BYTES),
    )


def demo_entries() -> frozenset[Path] | None:
    """The folders in the cache that this version of ART uses, there or not; None without ``art-serving``."""
    if importlib.util.find_spec("art_serving") is None:
        return None
    from art.demo.model import BUNDLE
    from art_serving import EnvironmentBuildError, vllm_bundle
    from art_serving.bundle import EnvironmentBundle, bundle_digest

    model = demo_model().folder
    assert model is not None
    try:
        bundles = [vllm_bundle(), EnvironmentBundle.of_project(BUNDLE, "smollm2")]
        environments = [
            cache_folder() / "environments" / f"{bundle.name}-{bundle_digest(bundle)}" for bundle in bundles
        ]
    except EnvironmentBuildError:  # an installation that is not whole; vllm_runtime tells of it
        return None
    return frozenset([model, model.with_name(f"{model.name}.staging"), *environments])


def build_checks() -> list[Check]:
    """Whether vLLM's environment is there or can be made; to be asked before a model service starts."""
    return _fetch_checks([vllm_runtime])


def fetch_checks(*, with_model: bool) -> list[Check]:
    """Whether all that the demo needs is there or can be made.

    With room for everything the caches are not looked into, which takes most of the time.
    """
    everything = VLLM_BYTES + (MODEL_BYTES if with_model else 0)
    folder = cache_folder()
    usable = folder_check("cache folder", folder, f"set {CACHE_VARIABLE} to one that can be written")
    if usable.state is not State.OK:
        return [*_fetch_checks([vllm_runtime, demo_model] if with_model else [vllm_runtime])]
    room = machine.space(folder)
    same = room.device == machine.space(uv_cache_folder()).device
    if same and room.free >= everything and not os.environ.get(RUNTIME_VARIABLE):
        found = f"{disk_size(room.free)} free on the file system of {folder}"
        return [passed("disk of the cache", found, f"at most {disk_size(everything)}, once")]
    return _fetch_checks([vllm_runtime, demo_model] if with_model else [vllm_runtime])


def _fetch_checks(sources: Sequence[Callable[[], Fetched]]) -> list[Check]:
    items = [source() for source in sources]
    broken = [
        failed(item.name, item.problem, remedy=f"unset {RUNTIME_VARIABLE}, or correct it")
        for item in items
        if item.problem
    ]
    missing = [item for item in items if not item.cached and not item.problem]
    if broken or not missing:
        return broken or [passed("cache", ", ".join(item.name for item in items) + " are there")]
    folder = cache_folder()
    everything = disk_size(VLLM_BYTES + MODEL_BYTES)
    remedy = f"set {CACHE_VARIABLE} to a folder that can be written and has {everything} free"
    usable = folder_check("cache folder", folder, remedy)
    if usable.state is not State.OK:
        return [usable]
    return [room_check(folder, uv_cache_folder(), missing)]


def room_check(folder: Path, uv_folder: Path, missing: list[Fetched]) -> Check:
    """Room in both caches for what is missing.

    uv unpacks packages into its cache and links them from there, or copies them when that is another file
    system. How much of it uv's cache has already is not known; where there is something in it, too little
    room for everything is a warning.
    """
    needed = sum(item.disk_bytes for item in missing)
    names = " and ".join(item.name for item in missing)
    here, there = machine.space(folder), machine.space(uv_folder)
    copied = (
        ""
        if here.device == there.device
        else f", and as much in uv's cache, {uv_folder}, on another file system"
    )
    what = f"{disk_size(needed)}, once, for {names}{copied}"
    found = f"{disk_size(here.free)} free on the file system of {here.existing}"
    remedy = (
        f"free {disk_size(max(needed - here.free, 0))}, or set {CACHE_VARIABLE} to a folder with more room"
    )
    if here.device != there.device:
        if here.free < needed:
            return failed("disk of the cache", found, what, remedy)
        if there.free < needed:
            short = f"{disk_size(there.free)} free on the file system of {there.existing}"
            short_remedy = (
                f"free {disk_size(needed - there.free)}, or set UV_CACHE_DIR to a folder below {folder}"
            )
            rate = warned if _filled(uv_folder) else failed
            return rate("disk of uv's cache", short, what, short_remedy)
        return passed("disk of the cache", found, what)
    if here.free >= needed:
        return passed("disk of the cache", found, what)
    least = sum(VLLM_OWN_BYTES if item.name.startswith("vLLM") else item.disk_bytes for item in missing)
    if _filled(uv_folder) and here.free >= least:
        return warned("disk of the cache", found, f"{what}, less what uv's cache has already", remedy)
    return failed("disk of the cache", found, what, remedy)


def _filled(uv_folder: Path) -> bool:
    """Whether uv's cache holds packages."""
    archive = uv_folder / "archive-v0"
    return archive.is_dir() and any(archive.iterdir())
