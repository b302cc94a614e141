"""The errors of this package. Each message has the numbers in it and says what to do next."""


class DataPlaneError(Exception):
    """Base of every error that this package raises on purpose."""


class RecordError(DataPlaneError, ValueError):
    """A record breaks an invariant of :mod:`art_dataplane.records`."""


class LeaseError(DataPlaneError):
    """A lease is stale, expired, released or was never granted."""


class DeadlineError(DataPlaneError, TimeoutError):
    """What was waited for did not happen within the deadline."""


class StoreError(DataPlaneError):
    """A record store was asked for something that it does not hold."""


class StoreFullError(StoreError):
    """A record does not fit into its owner's store."""


class QueueError(DataPlaneError):
    """A group cannot be queued: malformed, a duplicate, or above the queue's bounds."""


class PackingError(DataPlaneError, ValueError):
    """A selection cannot be packed as asked."""


class LookaheadError(DataPlaneError):
    """A batch could not be prepared ahead (its cause is the ``__cause__``), or the lookahead was closed."""


class ShmError(DataPlaneError):
    """A shared-memory segment is missing, malformed or used against its state."""


class ShmFullError(ShmError):
    """There is no room for a segment, in the store's bound or in the file system; nothing was written."""


class BatchError(DataPlaneError, ValueError):
    """A batch reference does not describe the bytes that it points to."""


class BatchClosedError(DataPlaneError):
    """A packed batch was used after it was closed (:meth:`art_dataplane.PackedBatch.close`)."""


class SnapshotError(DataPlaneError):
    """A snapshot cannot be written, or its bytes are not those of its manifest."""


class TransportError(DataPlaneError):
    """Bytes could not be moved from another host, or are not what their owner sent; nothing was kept."""
