"""Brings the records of a selection together from their owners."""

import asyncio
from collections.abc import Mapping

from art_dataplane.errors import DeadlineError, PackingError
from art_dataplane.queue import Selection
from art_dataplane.records import TrajectoryRecord, TrajectoryRef
from art_dataplane.store import RecordOwner, read_records


async def fetch_groups(
    selection: Selection, owners: Mapping[str, RecordOwner], deadline_s: float
) -> list[list[TrajectoryRecord]]:
    """Fetches the records of a selection, from all owners at once.

    Args:
        selection: groups of references under a lease.
        owners: record owners by the name that references carry.
        deadline_s: seconds within which all records must have come.

    Returns:
        Groups and records in the selection's order.

    Raises:
        PackingError: the selection is empty, an owner is unknown, or did not send what was asked for.
        DeadlineError: not all records came in time.
        StoreError: an owner does not hold a record.
        LeaseError: an owner has seen a higher fence for a record.
        ShmError: a segment of an owner is gone.
    """
    by_owner: dict[str, list[TrajectoryRef]] = {}
    for ref in selection.refs:
        by_owner.setdefault(ref.owner, []).append(ref)
    unknown = by_owner.keys() - owners.keys()
    if not by_owner:
        raise PackingError("the selection holds no references")
    if unknown:
        raise PackingError(f"no way to the owners {sorted(unknown)}; {len(owners)} owners are known")
    tasks = [
        asyncio.ensure_future(_fetch_from(owners[name], refs, selection, deadline_s))
        for name, refs in by_owner.items()
    ]
    try:
        done, pending = await asyncio.wait(tasks, timeout=deadline_s, return_when=asyncio.FIRST_EXCEPTION)
        fetched = [task.result() for task in tasks if task in done]
        if pending:
            late = [name for name, task in zip(by_owner, tasks, strict=True) if task in pending]
            raise DeadlineError(f"no answer from the owners {late} within {deadline_s} s")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    records = {record.record_id: record for part in fetched for record in part}
    return [[records[ref.record_id] for ref in group] for group in selection.groups]


async def _fetch_from(
    owner: RecordOwner, refs: list[TrajectoryRef], selection: Selection, deadline_s: float
) -> list[TrajectoryRecord]:
    records = read_records(await owner.fetch(refs, selection.lease, deadline_s))
    sent = [(record.record_id, record.group_id, record.error is None) for record in records]
    asked = [(ref.record_id, ref.group_id, ref.ok) for ref in refs]
    if sent != asked:
        wrong = next(
            (pair for pair in zip(asked, sent, strict=False) if pair[0] != pair[1]), (len(asked), len(sent))
        )
        raise PackingError(f"owner {refs[0].owner} was asked for {wrong[0]} and sent {wrong[1]}")
    return records
