"""The text of a topology to start from, made from the templates of the package."""

from __future__ import annotations

from importlib.resources import files
from string import Template

_TRANSPORTS = """# The network between hosts, as it registers with NCCL; set NCCL_NET to it on all of them.
nccl_transport = { net_name = "IB" }
# nixl_transport = {}             # needed as soon as experts are divided among hosts (ep)
"""
_SHARING = """temporal_sharing = true            # trainer and service take turns on the same GPUs
"""


def topology_text(hosts: int, gpus: int, *, gpu_model: str | None = None, file: str = "FILE") -> str:
    """A commented topology that passes all checks.

    Of one host the trainer has the first half of the GPUs and the service the rest (a single GPU they share,
    taking turns); of several hosts the service has the last quarter.

    Args:
        hosts: How many hosts.
        gpus: GPUs of each; 0 for CPUs only.
        gpu_model: What they are, if that is to be said.
        file: Its name, for the comments.
    """
    shown = "".join(c if c.isprintable() else "?" for c in file)
    return _on_gpus(hosts, gpus, gpu_model, shown) if gpus else _on_cpus(hosts, shown)


def _on_gpus(hosts: int, gpus: int, gpu_model: str | None, file: str) -> str:
    every = list(range(gpus))
    shared = hosts == 1 and gpus == 1
    if hosts == 1:
        trained, served = [(0, every[: max(1, gpus // 2)])], [(0, every[gpus // 2 :])]
    else:
        first = hosts - max(1, hosts // 4)
        trained = [(host, every) for host in range(first)]
        served = [(host, every) for host in range(first, hosts)]
    width = len(served[0][1])
    tp = max(size for size in (1, 2, 4, 8) if width % size == 0)
    return _filled(
        "gpu.toml",
        file=file,
        transports=_TRANSPORTS if hosts > 1 else "",
        hosts=_hosts(hosts, slots=32, gpus=gpus, gpu_model=gpu_model),
        placements="".join(f"  {_on_gpu(*place)},\n" for place in trained),
        tp="2" if len(trained[0][1]) % 2 == 0 else "1",
        members="".join(f"  {{ placement = {_on_gpu(*place)} }},\n" for place in served),
        service_tp=str(tp),
        service_dp=str(width * len(served) // tp),
        sharing=_SHARING if shared else "",
    )


def _on_cpus(hosts: int, file: str) -> str:
    trained = [f'{{ device = "cpu", host_id = "host-{host}", slots = 1 }}' for host in range(hosts)]
    return _filled(
        "cpu.toml",
        file=file,
        hosts=_hosts(hosts, slots=4),
        placements="".join(f"  {place},\n" for place in trained),
        members='  { placement = { device = "cpu", host_id = "host-0", slots = 1 } },\n',
    )


def _filled(name: str, **values: str) -> str:
    text = files("art_topology").joinpath("templates", name).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _on_gpu(host: int, gpus: list[int]) -> str:
    return f'{{ device = "gpu", host_id = "host-{host}", gpus = {gpus} }}'


def _hosts(hosts: int, *, slots: int, gpus: int = 0, gpu_model: str | None = None) -> str:
    from art_topology.commands.toml_text import toml_string

    blocks = []
    for host in range(hosts):
        at = host + 10
        lines = [
            "[[cluster.hosts]]",
            f'host_id = "host-{host}"',
            f'address = "10.{at >> 16}.{at >> 8 & 255}.{at & 255}"' if hosts > 1 else 'address = "127.0.0.1"',
            f"cpu_slots = {slots}",
        ]
        lines += [f"gpus = {list(range(gpus))}"] if gpus else []
        if gpus and gpu_model is not None:
            lines.append(f"gpu_model = {toml_string(gpu_model)}")
        elif gpus and host == 0:
            lines.append('# gpu_model = "H200"   # for the planner: a name in its table of hardware')
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)
