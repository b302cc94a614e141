"""Brings the records of a selection together from their owners.

What always holds: a group is complete or lost. A group of which a record is gone (its owner died, or does not
hold it any more) is named with what it lost; the other groups of the selection come all the same.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from art_dataplane.errors import (
    DeadlineError,
    OwnerDiedError,
    PackingError,
    RecordsLostError,
    RecordsMissingError,
    ShmError,
)
from art_dataplane.locations import Location, ShmLocation
from art_dataplane.records import LostGroup, TrajectoryRecord, TrajectoryRef
from art_dataplane.segment_files import parse_segment_name
from art_dataplane.selection import Selection
from art_dataplane.store import RecordOwner, read_records
from art_dataplane.waiting import check_deadline


class FetchedGroups(NamedTuple):
    """What came of a selection.

    Args:
        selection: the groups that came, under the same lease.
        records: their records, in the same order.
        lost: the groups that did not, and why. They are still under the lease: say so to the queue
            (:meth:`art_dataplane.TrajectoryQueue.mark_lost`) and release them.
    """

    selection: Selection
    records: list[list[TrajectoryRecord]]
    lost: tuple[LostGroup, ...]


class _Answer(NamedTuple):
    records: list[TrajectoryRecord]
    gone: dict[str, str]  # the reason by record id


async def fetch_groups(
    selection: Selection, owners: Mapping[str, RecordOwner], deadline_s: float
) -> list[list[TrajectoryRecord]]:
    """Fetches the records of a selection, all of them, from all owners at once.

    Args:
        selection: groups of references under a lease.
        owners: record owners by the name that references carry.
        deadline_s: seconds within which all records must have come.

    Returns:
        Groups and records in the selection's order.

    Raises:
        RecordsLostError: records of some groups are gone; it names these groups and no others.
        PackingError: the selection is empty, an owner is unknown, or did not send what was asked for.
        DeadlineError: not all records came in time.
        LeaseError: an owner has seen a higher fence for a record.
        ShmError: a segment of an owner that lives is gone.
    """
    fetched = await fetch_available(selection, owners, deadline_s)
    if fetched.lost:
        raise RecordsLostError(fetched.lost, len(selection.groups))
    return fetched.records


async def fetch_available(
    selection: Selection, owners: Mapping[str, RecordOwner], deadline_s: float
) -> FetchedGroups:
    """Fetches the records of those groups of a selection that are complete, and names the others.

    An owner counts as dead when it raises :class:`OwnerDiedError`, or ``ConnectionError`` or ``EOFError`` as
    a pipe or socket to a dead process does, or when its segment is gone and so is the process that made it.

    Args:
        selection: groups of references under a lease.
        owners: record owners by the name that references carry.
        deadline_s: seconds within which all owners must have answered.

    Raises:
        PackingError: the selection is empty, an owner is unknown, or did not send what was asked for.
        DeadlineError: an owner did not answer in time, which is no proof that it died.
        LeaseError: an owner has seen a higher fence for a record.
        ShmError: a segment of an owner that lives is gone.
    """
    check_deadline(deadline_s)
    by_owner: dict[str, list[TrajectoryRef]] = {}
    for ref in selection.refs:
        by_owner.setdefault(ref.owner, []).append(ref)
    unknown = by_owner.keys() - owners.keys()
    if not by_owner:
        raise PackingError("the selection holds no references")
    if unknown:
        raise PackingError(f"no way to the owners {sorted(unknown)}; {len(owners)} owners are known")
    tasks = {
        asyncio.ensure_future(_fetch_from(owners[name], refs, selection, deadline_s)): refs
        for name, refs in by_owner.items()
    }
    try:
        answers = await _answers(tasks, selection, deadline_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    records = {record.record_id: record for answer in answers for record in answer.records}
    lost = _lost_groups(selection, answers)
    kept = selection.without(group.group_id for group in lost)
    return FetchedGroups(kept, [[records[ref.record_id] for ref in group] for group in kept.groups], lost)


async def _answers(
    tasks: Mapping[asyncio.Task[_Answer], list[TrajectoryRef]], selection: Selection, deadline_s: float
) -> list[_Answer]:
    """Waits for all owners but those that hold records of groups only that are known to be lost."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    answers: list[_Answer] = []
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(
            pending, timeout=max(0.0, deadline - loop.time()), return_when=asyncio.FIRST_COMPLETED
        )
        # An owner that is reached with a timeout of its own may be the first to notice the time.
        late = [task for task in done if isinstance(task.exception(), TimeoutError)]
        if late:
            raise _late([tasks[task] for task in (*late, *pending)], selection, deadline_s) from (
                late[0].exception()
            )
        answers += [task.result() for task in done]
        lost = _lost_groups(selection, answers)
        lost_ids = {group.group_id for group in lost}
        pending = {task for task in pending if not lost_ids.issuperset(ref.group_id for ref in tasks[task])}
        if pending and loop.time() >= deadline:
            raise _late([tasks[task] for task in pending], selection, deadline_s) from (
                RecordsLostError(lost, len(selection.groups)) if lost else None
            )
    return answers


def _late(waited: list[list[TrajectoryRef]], selection: Selection, deadline_s: float) -> DeadlineError:
    late = sorted(refs[0].owner for refs in waited)
    concerned = sorted({ref.group_id for refs in waited for ref in refs})
    return DeadlineError(
        f"no answer from the owners {late} within {deadline_s} s; {len(concerned)} of "
        f"{len(selection.groups)} groups have records there, the first {concerned[0]}"
    )


async def _fetch_from(
    owner: RecordOwner, refs: list[TrajectoryRef], selection: Selection, deadline_s: float
) -> _Answer:
    """Asks one owner, and again without the groups of what it does not hold."""
    deadline = asyncio.get_running_loop().time() + deadline_s
    gone: dict[str, str] = {}
    asked = refs
    while asked:
        left_s = deadline - asyncio.get_running_loop().time()
        try:
            return _Answer(await _read(owner, asked, selection, left_s), gone)
        except RecordsMissingError as error:
            missing = {ref.record_id for ref in asked}.intersection(error.record_ids)
            if not missing:
                raise
            gone.update(dict.fromkeys(missing, str(error)))
            incomplete = {ref.group_id for ref in asked if ref.record_id in missing}
            asked = [ref for ref in asked if ref.group_id not in incomplete]
        except OwnerDiedError as error:
            gone.update((ref.record_id, error.reason) for ref in refs)
            asked = []
        except (ConnectionError, EOFError) as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            gone.update((ref.record_id, reason) for ref in refs)
            asked = []
    return _Answer([], gone)


async def _read(
    owner: RecordOwner, refs: list[TrajectoryRef], selection: Selection, deadline_s: float
) -> list[TrajectoryRecord]:
    location = await owner.fetch(refs, selection.lease, deadline_s)
    try:
        records = read_records(location)
    except ShmError as error:
        if _maker_is_dead(location):
            raise OwnerDiedError(refs[0].owner, str(error)) from error
        raise
    except msgspec.MsgspecError as error:
        raise PackingError(
            f"owner {refs[0].owner} was asked for {len(refs)} records and sent something else: {error}"
        ) from error
    sent = [(record.record_id, record.group_id, record.error is None, record.reward) for record in records]
    asked = [(ref.record_id, ref.group_id, ref.ok, ref.reward) for ref in refs]
    if sent != asked:
        wrong = next(
            (pair for pair in zip(asked, sent, strict=False) if pair[0] != pair[1]), (len(asked), len(sent))
        )
        raise PackingError(f"owner {refs[0].owner} was asked for {wrong[0]} and sent {wrong[1]}")
    return records


def _maker_is_dead(location: Location) -> bool:
    return isinstance(location, ShmLocation) and parse_segment_name(location.name)[1].is_alive() is False


def _lost_groups(selection: Selection, answers: Iterable[_Answer]) -> tuple[LostGroup, ...]:
    gone = {record_id: reason for answer in answers for record_id, reason in answer.gone.items()}
    lost = [(group, [ref for ref in group if ref.record_id in gone]) for group in selection.groups]
    return tuple(
        LostGroup(
            group[0].group_id,
            tuple(ref.record_id for ref in refs),
            tuple(dict.fromkeys(ref.owner for ref in refs)),
            "; ".join(dict.fromkeys(gone[ref.record_id] for ref in refs)),
        )
        for group, refs in lost
        if refs
    )
