"""What differs between two compiled topologies, in words, and what has to start again for it.

Everything that the fingerprint covers is compared, so a diff is empty exactly when the fingerprints are
equal. Hosts are matched by their ids, services by their names.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from art_topology.compiled import CompiledService, CompiledTrainer, GpuDevice, RuntimeTopology
from art_topology.diff_rules import Effect, Rule, rule
from art_topology.diff_words import in_words, listed, told_apart, told_host, told_service, told_trainer

__all__ = ["Change", "Part", "TopologyDiff", "diff_topologies"]


class Part(msgspec.Struct, frozen=True, order=True):
    """Something that starts, runs and stops as one.

    Args:
        kind: What it is. "everything" is the whole runtime, its controller and its workers.
        name: Of a service; otherwise empty.
    """

    kind: Literal["everything", "trainer", "service", "rollout_workers"]
    name: str = ""

    def __str__(self) -> str:
        return {
            "everything": "everything",
            "trainer": "the trainer's ranks",
            "service": f"service {self.name!r}",
            "rollout_workers": "the rollout workers",
        }[self.kind]


EVERYTHING = Part("everything")
TRAINER = Part("trainer")
ROLLOUT_WORKERS = Part("rollout_workers")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference, or the same one of several hosts, members or services.

    Args:
        paths: Where it is in the compiled topology, such as ``hosts['h0'].cpu_slots``.
        message: What was and what is, in words.
        restarts: What has to start again, or for the first time, or to stop, before it holds.
        why: Why that has to, and nothing else.
    """

    paths: tuple[str, ...]
    message: str
    restarts: tuple[Part, ...]
    why: str


class TopologyDiff(msgspec.Struct, frozen=True, kw_only=True):
    """All differences of two topologies.

    Args:
        changes: Those of the cluster, then of hosts, trainer and services.
        restarts: What has to start again for all of them together; ("everything",) contains the rest.
        warm: What runs in both topologies and need not start again.
        old_fingerprint: Of the topology before.
        new_fingerprint: Of the topology after.
    """

    changes: tuple[Change, ...]
    restarts: tuple[Part, ...]
    warm: tuple[Part, ...]
    old_fingerprint: str
    new_fingerprint: str

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return bool(self.changes)

    @property
    def summary(self) -> str:
        """One line: what starts again and what stays warm."""
        if not self.changes:
            return "no difference"
        again = listed([str(part) for part in self.restarts]) or "nothing"
        warm = listed([str(part) for part in self.warm]) or "nothing"
        return f"restarts {again}; keeps {warm} warm"

    def describe(self) -> str:
        """All of it as text: a line for each change and, below it, what it restarts and why."""
        lines = [self.summary]
        for change in self.changes:
            again = listed([str(part) for part in change.restarts]) or "nothing"
            lines += [f"- {change.message}", f"  restarts {again}: {change.why}"]
        return "\n".join(lines)


def diff_topologies(old: RuntimeTopology, new: RuntimeTopology) -> TopologyDiff:
    """Compares two compiled topologies; their warnings are no part of it.

    Args:
        old: What runs.
        new: What shall run.
    """
    found = [*_of_cluster(old, new), *_of_hosts(old, new), *_of_trainer(old, new), *_of_services(old, new)]
    changes = tuple(_grouped(found))
    restarts = {part for change in changes for part in change.restarts}
    if EVERYTHING in restarts:
        restarts = {EVERYTHING}
    ran, running = _parts(old), _parts(new)
    return TopologyDiff(
        changes=changes,
        restarts=tuple(
            [part for part in (EVERYTHING, *running) if part in restarts]
            + sorted(part for part in restarts if part not in running and part != EVERYTHING)
        ),
        warm=tuple(
            part for part in running if part in ran and part not in restarts and EVERYTHING not in restarts
        ),
        old_fingerprint=old.fingerprint,
        new_fingerprint=new.fingerprint,
    )


class _Found(NamedTuple):
    """A difference of one subject, before those of the same field are told together."""

    key: str
    rule: Rule
    plural: str
    subject: str
    path: str
    old: str
    new: str
    restarts: tuple[Part, ...]


def _parts(topology: RuntimeTopology) -> list[Part]:
    return [
        *([TRAINER] if topology.trainer is not None else []),
        *(Part("service", service.name) for service in topology.services),
        *([ROLLOUT_WORKERS] if any(host.free_cpu_slots for host in topology.hosts) else []),
    ]


def _of_cluster(old: RuntimeTopology, new: RuntimeTopology) -> Iterator[_Found]:
    skipped = {"hosts", "trainer", "services", "warnings", "fingerprint"}
    across = _across_hosts_on_gpus(old) | _across_hosts_on_gpus(new)
    networked = tuple(part for part in _parts(new) if part in across)
    nixl = tuple(part for part in _parts(new) if part != ROLLOUT_WORKERS)
    special = {"gpu_networks": networked, "nixl": nixl if len(new.hosts) > 1 else ()}
    for field, before, after in _fields(old, new, skipped):
        told = rule(new, field, "everything")
        restarts = special.get(told.effect, _parts_of(told.effect))
        yield _Found(field, told, "", "", field, before, after, restarts)


def _across_hosts_on_gpus(topology: RuntimeTopology) -> set[Part]:
    """What NCCL joins across hosts."""
    shares = {
        Part("service", service.name): [member.devices for member in service.members]
        for service in topology.services
    }
    if topology.trainer is not None:
        shares[TRAINER] = [host.devices for host in topology.trainer.hosts]
    return {
        part
        for part, hosts in shares.items()
        if len(hosts) > 1 and any(isinstance(device, GpuDevice) for devices in hosts for device in devices)
    }


def _of_hosts(old: RuntimeTopology, new: RuntimeTopology) -> Iterator[_Found]:
    before = {host.host_id: host for host in old.hosts}
    after = {host.host_id: host for host in new.hosts}
    yield from _come_and_gone(before, after, "hosts", "host", (EVERYTHING,), "hosts['{}']", told_host)
    moved = False
    for name in (name for name in after if name in before):
        for field, was, now in _fields(before[name], after[name], {"host_id"}):
            told = rule(after[name], field, "everything")
            moved |= field == "node_rank"
            path, restarts = f"hosts[{name!r}].{field}", _parts_of(told.effect)
            yield _Found(f"host.{field}", told, "hosts", f"host {name!r}", path, was, now, restarts)
    if not moved:
        yield from _reordered(before, after, rule(new, "hosts", "everything"), "hosts", "")


def _of_trainer(old: RuntimeTopology, new: RuntimeTopology) -> Iterator[_Found]:
    before, after = old.trainer, new.trainer
    if before is None or after is None:
        if before is not after:
            why = "it is there in one of them only"
            told = Rule("trainer", "trainer", why)
            was, now = (told_trainer(trainer) for trainer in (before, after))
            yield _Found("trainer", told, "", "", "trainer", was, now, (TRAINER,))
        return

    def found(was: object, now: object, path: str, skipped: set[str]) -> Iterator[_Found]:
        for field, old_words, new_words in _fields(was, now, skipped):
            told = rule(now, field, "trainer")
            where, restarts = f"{path}.{field}", _parts_of(told.effect)
            yield _Found(where, told, "", "the trainer", where, old_words, new_words, restarts)

    specified = list(found(before.parallel, after.parallel, "trainer.parallel", set()))
    yield from specified
    # The layout repeats what was specified; what is left is derived from the number of ranks.
    repeated = {entry.path.rpartition(".")[2] for entry in specified}
    yield from found(before.layout, after.layout, "trainer.layout", repeated)
    yield from found(before, after, "trainer", {"parallel", "layout", "hosts"})
    yield from _of_trainer_hosts(before, after)


def _of_trainer_hosts(before: CompiledTrainer, after: CompiledTrainer) -> Iterator[_Found]:
    had = {host.host_id: host for host in before.hosts}
    has = {host.host_id: host for host in after.hosts}
    path = "trainer.hosts['{}']"
    yield from _come_and_gone(
        had,
        has,
        "trainer.hosts",
        "host of the trainer",
        (TRAINER,),
        path,
        lambda host: in_words(host.devices),
    )
    moved = False
    for name in (name for name in has if name in had):
        for field, was, now in _fields(had[name], has[name], {"host_id"}):
            told = rule(has[name], field, "trainer")
            moved |= field == "first_rank"
            where, restarts = f"trainer.hosts[{name!r}].{field}", _parts_of(told.effect)
            yield _Found(f"trainer.{field}", told, "hosts", f"host {name!r}", where, was, now, restarts)
    if not moved:
        yield from _reordered(had, has, rule(after, "hosts", "trainer"), "trainer.hosts", "the trainer")


def _of_services(old: RuntimeTopology, new: RuntimeTopology) -> Iterator[_Found]:
    before = {service.name: service for service in old.services}
    after = {service.name: service for service in new.services}
    for name in (name for name in (*before, *after) if (name in before) != (name in after)):
        told = Rule(f"service {name!r}", "service", "it is there in one of them only")
        was, now = (told_service(services.get(name)) for services in (before, after))
        path = f"services[{name!r}]"
        yield _Found(path, told, "", "", path, was, now, (Part("service", name),))
    for name in (name for name in after if name in before):
        yield from _of_service(before[name], after[name], _shares_gpus(old, name) or _shares_gpus(new, name))
    yield from _reordered(before, after, rule(new, "services", "nothing"), "services", "")


def _of_service(before: CompiledService, after: CompiledService, shares_gpus: bool) -> Iterator[_Found]:
    name = after.name
    subject, path = f"service {name!r}", f"services[{name!r}]"

    def found(was: object, now: object, where: str, whose: str, skipped: set[str]) -> Iterator[_Found]:
        for field, old, new in _fields(was, now, skipped):
            told = rule(now, field, "service")
            restarts = _parts_of(told.effect, name)
            if field == "temporal_sharing" and shares_gpus:
                told = Rule(told.noun, told.effect, "both take their turns from their start")
                restarts = (TRAINER, *restarts)
            key = f"{type(now).__name__}.{field}"
            yield _Found(key, told, "services", whose, f"{where}.{field}", old, new, restarts)

    own = list(found(before, after, path, subject, {"spec", "members"}))
    yield from own
    yield from found(before.spec.parallel, after.spec.parallel, f"{path}.spec.parallel", subject, set())
    told_already = {entry.path.rpartition(".")[2] for entry in own}
    yield from found(
        before.spec, after.spec, f"{path}.spec", subject, {"name", "parallel", "members"} | told_already
    )
    members = list(zip(before.members, after.members, strict=False))
    placed = len(before.members) == len(after.members)
    for i, (had, has) in enumerate(members):
        whose = f"member {i} of {subject}"
        differences = list(found(had, has, f"{path}.members[{i}]", whose, set()))
        placed &= not differences
        yield from differences
    if len(before.members) != len(after.members):
        told = Rule("members", "service", "all members of a deployment start together")
        counts = (str(len(before.members)), str(len(after.members)))
        key = "CompiledService.members"
        yield _Found(key, told, "services", subject, f"{path}.members", *counts, _parts_of("service", name))
    elif placed and before.spec.members != after.spec.members:
        yield from found(
            before.spec,
            after.spec,
            f"{path}.spec",
            subject,
            {field for field in after.spec.__struct_fields__ if field != "members"},
        )


def _shares_gpus(topology: RuntimeTopology, name: str) -> bool:
    """Whether the trainer and a service are placed on a device together."""
    if topology.trainer is None:
        return False
    theirs = {(host.host_id, device) for host in topology.trainer.hosts for device in host.devices}
    return any(
        (member.host_id, device) in theirs
        for service in topology.services
        if service.name == name
        for member in service.members
        for device in member.devices
    )


def _come_and_gone(
    before: dict[str, Any],
    after: dict[str, Any],
    key: str,
    noun: str,
    restarts: tuple[Part, ...],
    path: str,
    told_as: Any,
) -> Iterator[_Found]:
    why = (
        "the runtime is attached to its hosts for its life" if key == "hosts" else "all ranks start together"
    )
    for name in (name for name in (*before, *after) if (name in before) != (name in after)):
        is_new = name in after
        there = told_as(after[name] if is_new else before[name])
        told = Rule(f"{'new' if is_new else 'gone'} {noun}", "nothing", why)
        was, now = ("", there) if is_new else (there, "")
        yield _Found(f"{key}.{is_new}", told, f"{noun}s", repr(name), path.format(name), was, now, restarts)


def _reordered(
    before: dict[str, Any], after: dict[str, Any], told: Rule, path: str, subject: str
) -> Iterator[_Found]:
    """The order of what is in both."""
    was = [name for name in before if name in after]
    now = [name for name in after if name in before]
    if was != now:
        first = next(i for i, (x, y) in enumerate(zip(was, now, strict=True)) if x != y)
        old, new = (", ".join(repr(name) for name in names[first : first + 3]) for names in (was, now))
        yield _Found(f"{path}.order", told, "", subject, path, old, new, _parts_of(told.effect))


def _parts_of(effect: Effect, service: str = "") -> tuple[Part, ...]:
    """The parts of an effect that needs nothing else known."""
    return {
        "everything": (EVERYTHING,),
        "trainer": (TRAINER,),
        "service": (Part("service", service),),
        "rollout_workers": (ROLLOUT_WORKERS,),
    }.get(effect, ())


def _fields(old: Any, new: Any, skipped: set[str]) -> Iterator[tuple[str, str, str]]:
    """The fields that differ, with both values in words."""
    for field in new.__struct_fields__:
        was, now = getattr(old, field), getattr(new, field)
        if field not in skipped and (was != now or type(was) is not type(now)):
            yield field, *told_apart(was, now)


def _grouped(found: Iterable[_Found]) -> Iterator[Change]:
    groups: dict[tuple[str, tuple[Part, ...], str], list[_Found]] = {}
    for entry in found:
        parts = () if entry.rule.effect == "service" else entry.restarts
        groups.setdefault((entry.key, parts, entry.rule.why), []).append(entry)
    for entries in groups.values():
        restarts = {part: None for entry in entries for part in entry.restarts}
        yield Change(
            paths=tuple(entry.path for entry in entries),
            message=_message(entries),
            restarts=tuple(restarts),
            why=entries[0].rule.why,
        )


_MOST_SHOWN = 3


def _message(entries: list[_Found]) -> str:
    first = entries[0]
    if not first.old or not first.new:  # come or gone
        noun = f"{first.rule.noun}{'s' if len(entries) > 1 else ''}"
        shown = [f"{entry.subject} ({entry.old or entry.new})" for entry in entries[:_MOST_SHOWN]]
        return f"{noun}: {listed(shown, more=len(entries) - len(shown))}"
    if len({(entry.old, entry.new) for entry in entries}) == 1:
        if len(entries) > 1:
            names = [entry.subject for entry in entries[:_MOST_SHOWN]]
            subject = f"{len(entries)} {first.plural} ({listed(names, more=len(entries) - len(names))})"
        else:
            subject = first.subject
        whose = f" of {subject}" if subject else ""
        return f"{first.rule.noun}{whose}: {first.old} before, {first.new} now"
    shown = [f"of {entry.subject} {entry.old} before, {entry.new} now" for entry in entries[:_MOST_SHOWN]]
    more = len(entries) - len(shown)
    return f"{first.rule.noun}: {'; '.join(shown)}{f'; and of {more} more' if more else ''}"
