"""``import art`` is light, has no effect, and offers what it lists."""

import json
import subprocess
import sys

import pytest

import art

HEAVY = ("torch", "monarch", "transformers", "openai", "pydantic", "vllm", "megatron")
PROBE = """
import json, os, sys, threading
before = dict(os.environ)
import art
import art.distributed
print(json.dumps({
    "modules": sorted(sys.modules),
    "environment_changed": before != dict(os.environ),
    "threads": threading.active_count(),
}))
"""


def test_import_loads_nothing_heavy_and_changes_nothing() -> None:
    result = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    seen = json.loads(result.stdout)
    assert not set(HEAVY) & set(seen["modules"])
    assert seen["environment_changed"] is False
    assert seen["threads"] == 1
    assert result.stderr == ""


@pytest.mark.parametrize("name", [name for name in art.__all__ if name != "MegatronBackend"])
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(art, name) is not None
    assert name in dir(art)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'art' has no attribute 'Trajectori'"):
        _ = art.Trajectori  # type: ignore[attr-defined]


def test_the_names_of_the_runtime_are_listed() -> None:
    import art.distributed

    promised = {
        "ArtLaunchContext",
        "ArtRuntime",
        "InstalledAsyncCallable",
        "compile_topology",
        "PackingRequest",
        "PackedBatchRef",
        "HostSpec",
        "ClusterSpec",
        "GpuPlacement",
        "TrainerMeshSpec",
        "ModelServiceSpec",
        "VllmParallelSpec",
    }
    assert promised <= set(art.distributed.__all__)
    for name in sorted(promised - {"ArtRuntime", "ArtLaunchContext"}):
        assert getattr(art.distributed, name) is not None
