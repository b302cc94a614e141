"""A memory estimate: named parts, each with its bytes and where they come from."""

import msgspec


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one device for one purpose.

    Args:
        name: What for.
        bytes: How many bytes.
        why: The formula with its numbers, in one line.
    """

    name: str
    bytes: int
    why: str


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory of one rank, part by part.

    Args:
        parts: What takes how much; their sum is the peak that the rank needs.
        pp_rank: The pipeline stage of the rank.
        host_parts: What lies in host memory instead (offload), for this rank.
    """

    parts: tuple[MemoryPart, ...]
    pp_rank: int
    host_parts: tuple[MemoryPart, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Device memory that the rank needs, in bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def host_bytes(self) -> int:
        """Host memory that the rank needs for what is offloaded, in bytes."""
        return sum(part.bytes for part in self.host_parts)

    def part(self, name: str) -> MemoryPart:
        """The part of that name.

        Raises:
            KeyError: there is none.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(f"no part {name!r} in {', '.join(p.name for p in self.parts)}")


class ServiceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory of the fullest worker of a service.

    Args:
        parts: What takes how much, the KV cache last; their sum is what the service may use.
        weight_bytes: Bytes of a worker's weights.
        kv_bytes_per_token: Bytes that a worker caches for one token of a sequence's context, layers that grow
            with the context only.
        kv_bytes_per_sequence: Bytes that a worker caches for one sequence at the workload's lengths, windows
            and states included.
        kv_budget_bytes: Bytes left for the KV cache; 0 or less: the model does not fit.
        max_concurrent_sequences: Sequences at the workload's lengths that fit at once on all data-parallel
            copies together.
    """

    parts: tuple[MemoryPart, ...]
    weight_bytes: int
    kv_bytes_per_token: float
    kv_bytes_per_sequence: float
    kv_budget_bytes: int
    max_concurrent_sequences: int

    @property
    def fits(self) -> bool:
        """Whether at least one sequence fits."""
        return self.max_concurrent_sequences >= 1
