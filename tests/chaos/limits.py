"""The bounds and durations of a chaos session: small, so that all of them are met."""

from art_dataplane import QueueLimits

QUEUE_LIMITS = QueueLimits(groups=10, records=36, byte_count=1 << 20)
RECORD_BYTES = 40_000
"""A record is never larger."""

STORE_RECORDS = 60
STORE_BYTES = 900_000
SEGMENT_BYTES = 4 << 20

LEASE_S = 1.0
BATCH_LEASE_S = 3.0
CALL_S = 3.0
"""Longer than a lease, so that answers come late and are refused."""

COUNTS = {"owner": 3, "packer": 2, "receiver": 1, "consumer": 4}
"""Processes of each role; every second consumer is on the other host, with the receiver."""
