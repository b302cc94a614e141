"""``art-topology groups``: the process groups of the trainer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from art_topology.commands.options import Family, File, Format, Json

if TYPE_CHECKING:
    from art_topology.compiled import CompiledTrainer
    from art_topology.rank_group import RankGroup
    from art_topology.ranks import GroupFamily

NAME = "groups"
EPILOG = """Examples:

`art-topology groups cluster.toml`: how many groups each family has, and which leave their host

`art-topology groups cluster.toml --family cp`: the groups themselves

`art-topology groups cluster.toml --rank 12`: those of one rank

`art-topology groups cluster.toml --json | jq '.groups[] | select(.family == "ep")'`

Exit codes: 0; 1 the topology has errors; 2 wrong use, or a file that cannot be read.
"""

_MEMBERS = 16


def command(
    file: File,
    family: Family = None,
    rank: Annotated[
        int | None,
        typer.Option("--rank", "-r", metavar="N", help="Only groups of this rank.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many groups to list.")] = 20,
    kind: Format = None,
    as_json: Json = False,
) -> None:
    """List the trainer's process groups, in megatron-core's rank order.

    With --json all groups with all members, however many.
    """  # fmt: skip
    from art_topology.commands.sources import CommandError, check_rank, compiled, refusals
    from art_topology.ranks import GROUP_FAMILIES

    with refusals(as_json):
        families = _chosen(family, GROUP_FAMILIES)
        trainer = compiled(file, kind)[1].trainer
        if trainer is None:
            raise CommandError(f"{file} has no trainer, so there are no groups")
        if rank is not None:
            check_rank(trainer, rank)
        if as_json:
            _stream(file, trainer, families, rank)
        elif rank is not None:
            _of_rank(trainer, families, rank)
        elif family is not None:
            _of_family(trainer, families[0], limit)
        else:
            _all_families(trainer)


def shortened(group: Sequence[int], most: int = _MEMBERS) -> str:
    """Such as "0 8 16 24 ... 120"."""
    if len(group) <= most:
        return " ".join(map(str, group))
    return f"{' '.join(map(str, group[:4]))} ... {group[-1]}"


def crosses(group: RankGroup, ranks_per_host: int) -> bool:
    """Whether a group, whose ranks ascend, has some on several hosts."""
    return group[0] // ranks_per_host != group[-1] // ranks_per_host


def _chosen(family: str | None, known: tuple[GroupFamily, ...]) -> tuple[GroupFamily, ...]:
    from difflib import get_close_matches

    from art_topology.commands.sources import CommandError

    if family is None:
        return known
    for name in known:
        if name == family:
            return (name,)
    near = get_close_matches(family, known, 1)
    hint = f"did you mean {near[0]!r}? There are" if near else "there are"
    raise CommandError(f"no family {family!r}: {hint} {', '.join(known)}")


def _size(trainer: CompiledTrainer, family: GroupFamily) -> int:
    return len(next(trainer.layout.groups(family)))


def _all_families(trainer: CompiledTrainer) -> None:
    from art_topology.commands.output import say, table
    from art_topology.ranks import GROUP_FAMILIES
    from art_topology.summary import counted, trainer_axes

    layout = trainer.layout
    say(f"{counted(layout.world_size, 'rank')} {trainer_axes(trainer)}".rstrip(), "bold")
    rows = []
    for family in GROUP_FAMILIES:
        first = next(layout.groups(family))
        size = len(first)
        where = "yes" if layout.crosses_hosts(family, trainer.ranks_per_host) else "no"
        rows.append([family, f"{layout.group_count(family):,}", f"{size:,}", where, shortened(first, 8)])
    table(("family", "groups", "ranks each", "crosses hosts", "the first"), rows, right=(1, 2))


def _of_family(trainer: CompiledTrainer, family: GroupFamily, limit: int) -> None:
    from itertools import islice

    from art_topology.commands.output import say, table
    from art_topology.summary import counted

    layout, per_host = trainer.layout, trainer.ranks_per_host
    count, size = layout.group_count(family), _size(trainer, family)
    across = "some cross hosts" if layout.crosses_hosts(family, per_host) else "none crosses hosts"
    say(f"{family}: {counted(count, 'group')} of {counted(size, 'rank')}, {across}", "bold")
    rows = [
        [f"{index:,}", _hosts(trainer, group), shortened(group)]
        for index, group in enumerate(islice(layout.groups(family), limit))
    ]
    table(("group", "hosts", "ranks"), rows, right=(0,))
    if count > limit:
        say(f"... and {count - limit:,} more: --limit {count} or --json lists them all")


def _hosts(trainer: CompiledTrainer, group: RankGroup) -> str:
    per_host = trainer.ranks_per_host
    hosts = sorted({rank // per_host for rank in group})
    names = [trainer.hosts[host].host_id for host in hosts]
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _of_rank(trainer: CompiledTrainer, families: tuple[GroupFamily, ...], rank: int) -> None:
    from art_topology.commands.output import say, table

    say(f"rank {rank} on {trainer.rank(rank).host_id}", "bold")
    rows = []
    for family in families:
        group = trainer.layout.group(family, rank)
        if group is not None:
            position = f"{group.index(rank)} of {len(group)}"
            rows.append([family, position, _hosts(trainer, group), shortened(group)])
    table(("family", "position from 0", "hosts", "ranks"), rows)


def _stream(file: str, trainer: CompiledTrainer, families: tuple[GroupFamily, ...], rank: int | None) -> None:
    """A :class:`~art_topology.commands.documents.groups.GroupsDocument`, group by group."""
    import msgspec

    from art_topology.commands.documents.groups import FamilyRow

    layout = trainer.layout
    rows = tuple(
        FamilyRow(
            family=family,
            groups=layout.group_count(family),
            size=_size(trainer, family),
            crosses_hosts=layout.crosses_hosts(family, trainer.ranks_per_host),
        )
        for family in families
    )

    def encoded(value: object) -> str:
        return msgspec.json.encode(value).decode()

    write = sys.stdout.write
    write(f'{{\n  "ok": true,\n  "file": {encoded(file)},\n  "world_size": {layout.world_size},\n')
    write(f'  "families": {encoded(rows)},\n  "groups": [')
    separator = "\n    "
    for family, index, group in _groups(trainer, families, rank):
        write(
            f'{separator}{{"family": {encoded(family)}, "index": {index}, "ranks": {encoded(list(group))}}}'
        )
        separator = ",\n    "
    write("\n  ]\n}\n")


def _groups(
    trainer: CompiledTrainer, families: tuple[GroupFamily, ...], rank: int | None
) -> Iterator[tuple[str, int, RankGroup]]:
    for family in families:
        mine = trainer.layout.group(family, rank) if rank is not None else None
        for index, group in enumerate(trainer.layout.groups(family)):
            if rank is None or group == mine:
                yield family, index, group
