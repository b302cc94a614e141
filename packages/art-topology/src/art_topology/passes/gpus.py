"""The GPUs that the hosts list: each once, by a complete id, in one host."""

from collections import Counter
from collections.abc import Mapping

from art_topology.gpus import completed, gpu_key, is_complete, parent_of
from art_topology.passes.findings import Findings, listed
from art_topology.passes.hosts import HostTable
from art_topology.spec import GpuId


def check_host_gpus(
    table: HostTable, findings: Findings, wanted: Mapping[str, frozenset[GpuId]]
) -> dict[str, tuple[GpuId, ...]]:
    """Checks what every host lists, and the hosts against each other.

    Args:
        table: The hosts.
        findings: Takes the diagnostics.
        wanted: The GPUs of each host that placements name, for what was meant.

    Returns:
        By host, what was meant in place of GPUs that are listed twice.
    """
    meant: dict[str, tuple[GpuId, ...]] = {}
    homes: dict[GpuId, tuple[int, int]] = {}
    for i, host in enumerate(table.cluster.hosts):
        kinds = {type(gpu) for gpu in host.gpus}
        if kinds <= {int} and len(set(host.gpus)) == len(host.gpus):
            continue
        found = _check_one_host(table, i, kinds, findings, wanted.get(host.host_id, frozenset()))
        if found:
            meant[host.host_id] = found
        if str in kinds:
            _check_one_home(table, i, homes, findings)
    return meant


def _check_one_host(
    table: HostTable, i: int, kinds: set[type], findings: Findings, wanted: frozenset[GpuId]
) -> tuple[GpuId, ...]:
    host, path = table.cluster.hosts[i], f"cluster.hosts[{i}].gpus"
    for k, gpu in enumerate(host.gpus):
        if not is_complete(gpu):
            better = completed(str(gpu))
            findings.report(
                "ART-T108",
                f"{path}[{k}]",
                f"{gpu!r} of host {host.host_id!r} is not a whole UUID",
                "give all 32 digits, in groups of 8, 4, 4, 4 and 12, as `nvidia-smi -L` prints them"
                + (f": {better!r}" if better else ""),
                suggestion=(f"{path}[{k}]", better) if better else None,
            )
    if len(kinds) > 1:
        findings.report(
            "ART-T107",
            path,
            f"host {host.host_id!r} lists GPUs by index and by UUID, so that one could be listed twice",
            "name all GPUs of a host in the same way",
        )
        return ()
    keys = [gpu_key(gpu) for gpu in host.gpus]
    counts = Counter(keys)
    repeated = [key for key, count in counts.items() if count > 1]
    parts = [gpu for gpu in host.gpus if (parent := parent_of(gpu)) is not None and parent in counts]
    if repeated or parts:
        meant = _meant(counts, wanted) if kinds == {int} else ()
        once: list[GpuId] = [
            gpu for k, gpu in enumerate(host.gpus) if gpu not in parts and keys.index(keys[k]) == k
        ]
        once = sorted([*once, *meant], key=int) if meant else once
        findings.report(
            "ART-T107",
            path,
            f"host {host.host_id!r} lists {listed(repeated)} more than once"
            if repeated
            else f"host {host.host_id!r} lists the slice {listed(parts)} and the whole GPU it is a part of",
            f"list every GPU once{', and those that are placed' if meant else ''}: "
            f"{once if len(once) <= 16 else f'{len(once)} GPUs'}",
            suggestion=(path, once),
        )
        return meant
    return ()


def _meant(counts: Counter[GpuId], wanted: frozenset[GpuId]) -> tuple[GpuId, ...]:
    """The indices that placements name and that stand in the list under another's, as far as they may: a GPU
    far behind those that are listed was not meant."""
    extra = counts.total() - len(counts)
    last = max(int(gpu) for gpu in counts) + extra
    missing = sorted(gpu for gpu in wanted if isinstance(gpu, int) and gpu <= last and gpu not in counts)
    return tuple(missing[:extra])


def _check_one_home(
    table: HostTable, i: int, homes: dict[GpuId, tuple[int, int]], findings: Findings
) -> None:
    host = table.cluster.hosts[i]
    for k, gpu in enumerate(host.gpus):
        if not isinstance(gpu, str) or not is_complete(gpu):
            continue
        other, place = homes.setdefault(gpu_key(gpu), (i, k))
        if other != i:
            findings.report(
                "ART-T109",
                f"cluster.hosts[{i}].gpus[{k}]",
                f"hosts {table.cluster.hosts[other].host_id!r} and {host.host_id!r} both list {gpu!r}",
                "list a GPU under the host it is in; `nvidia-smi -L` there prints its UUID",
                [f"cluster.hosts[{other}].gpus[{place}]"],
            )
