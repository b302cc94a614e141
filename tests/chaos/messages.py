"""What the processes of a chaos session say to each other."""

import msgspec

from art_dataplane import (
    Lease,
    PackedBatchRef,
    ProcessIdentity,
    RemoteLocation,
    Selection,
    ShmLocation,
    TrajectoryRef,
)
from art_dataplane.records import LostGroup


class Make(msgspec.Struct, frozen=True, tag=True):
    """To an owner: roll out these records of a group and keep them; answered by their references."""

    group_id: str
    record_ids: tuple[str, ...]


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """To an owner: forget these records, and do not make them any more."""

    record_ids: tuple[str, ...]


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """To an owner: where are these records?"""

    refs: tuple[TrajectoryRef, ...]
    lease: Lease


class Drop(msgspec.Struct, frozen=True, tag=True):
    """To an owner: these records were consumed."""

    refs: tuple[TrajectoryRef, ...]
    lease: Lease


class Pack(msgspec.Struct, frozen=True, tag=True):
    """To a packer: make a batch of a selection, and offer it to other hosts or not."""

    selection: Selection
    ticket: int
    offered: bool
    deadline_s: float


class Packed(msgspec.Struct, frozen=True):
    """From a packer: the batch, None when no group came, and the groups that are lost."""

    ref: PackedBatchRef | None
    lost: tuple[LostGroup, ...]


class Free(msgspec.Struct, frozen=True, tag=True):
    """To a packer: a batch was consumed."""

    batch_id: str


class Receive(msgspec.Struct, frozen=True, tag=True):
    """To the receiver of a host: where is this on our host?"""

    location: RemoteLocation
    holder: ProcessIdentity
    deadline_s: float


class GiveBack(msgspec.Struct, frozen=True, tag=True):
    """To the receiver of a host: I have unmapped it."""

    location: ShmLocation
    holder: ProcessIdentity


class Consume(msgspec.Struct, frozen=True, tag=True):
    """To a consumer: read this batch, through the receiver of its host when it is of another one."""

    ref: PackedBatchRef
    receiver: str | None
    deadline_s: float


class Consumed(msgspec.Struct, frozen=True):
    """From a consumer: the records it read by group, and what was wrong with them."""

    record_ids: dict[str, tuple[str, ...]]
    wrong: tuple[str, ...]


class Look(msgspec.Struct, frozen=True, tag=True):
    """To anybody: what do you hold?"""


class Used(msgspec.Struct, frozen=True):
    """So much of a bound is used."""

    what: str
    used: int
    capacity: int


Message = Make | Cancel | Fetch | Drop | Pack | Free | Receive | GiveBack | Consume | Look
