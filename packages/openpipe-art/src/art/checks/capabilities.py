"""What this machine can do with ART as it is installed, and what stands in the way of the rest."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from art.checks import machine
from art.checks.cache import Fetched, demo_model, vllm_runtime
from art.checks.demo import demo_checks
from art.checks.hosts import runtime_checks
from art.checks.packages import installed_check, python_check
from art.checks.results import Check, failures
from art.checks.stale import StaleEntry, stale_entries

GPU_TRAINING = "this version trains and serves on CPUs only"


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that ART can do.

    Args:
        name: the extra, or what it is about.
        what: what one does with it.
        runs: whether it runs here.
        missing: what stands in the way, each with its remedy.
    """

    name: str
    what: str
    runs: bool
    missing: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All that `art doctor` tells.

    Args:
        machine: what it is.
        demo_runs: whether `art demo` can run here.
        capabilities: what runs, in the order of what they need.
        checks: everything that was looked at, each once.
        fetched: what is fetched or built once, and whether it is there.
        stale: what lies in the cache and this version does not use.
    """

    machine: machine.Machine
    demo_runs: bool
    capabilities: tuple[Capability, ...]
    checks: tuple[Check, ...]
    fetched: tuple[Fetched, ...]
    stale: tuple[StaleEntry, ...] = ()


def diagnose(run_dir: Path | None = None, extra_checks: Sequence[Check] = ()) -> Diagnosis:
    """Looks at everything. Takes some tenths of a second, and up to 3 s where much in the cache is stale.

    Args:
        run_dir: folder in which the demo's run would be kept.
        extra_checks: others that the demo depends on.
    """
    client = [python_check(), installed_check()]
    runtime = [*client, *runtime_checks()]
    full = [*demo_checks(run_dir=run_dir), *extra_checks]
    here = machine.machine()
    return Diagnosis(
        machine=here,
        demo_runs=not failures(full),
        capabilities=(
            _capability("client", "build trajectories, talk to a served model", client),
            _capability("distributed", "rollouts in processes of their own, on Monarch", runtime),
            _capability("cpu", "the full loop without a GPU: art demo, MegatronBackend", full),
            _gpu_capability(here.gpus),
        ),
        checks=tuple(dict.fromkeys([*client, *runtime, *full])),
        fetched=(vllm_runtime(), demo_model()),
        stale=stale_entries(),
    )


def _capability(name: str, what: str, checks: list[Check]) -> Capability:
    missing = tuple(check.line() for check in failures(checks))
    return Capability(name=name, what=what, runs=not missing, missing=missing)


def _gpu_capability(gpus: tuple[machine.Gpu, ...]) -> Capability:
    names = ", ".join(gpu.name for gpu in gpus)
    found = f"found: {names}, but {GPU_TRAINING}" if gpus else f"no GPU was found, and {GPU_TRAINING}"
    return Capability(name="GPU", what="train and serve on GPUs", runs=False, missing=(found,))
