"""Records with routes as a packing worker receives them, and two plain ways to put routes together."""

from multiprocessing.shared_memory import SharedMemory

import numpy as np

from art_dataplane import RouteBlock, TokenRecord, TrajectoryRecord, VersionSpan
from art_dataplane.routes import route_dtype


def make_groups(
    group_count: int, group_size: int, prompt: int, completion: int, layers: int, topk: int, experts: int
) -> list[list[TrajectoryRecord]]:
    """Groups that share a prompt and its routes. Every token that is computed once has an id of its own."""
    generator = np.random.default_rng(0)
    groups = []
    next_id = 0

    def take(count: int) -> np.ndarray:
        nonlocal next_id
        next_id += count
        return np.arange(next_id - count, next_id, dtype=np.int32)

    def draw(count: int) -> np.ndarray:
        return generator.integers(0, experts, (count, layers, topk), route_dtype(experts))

    for group in range(group_count):
        prompt_ids, prompt_routes = take(prompt), draw(prompt)
        records = []
        for member in range(group_size):
            exchange = TokenRecord(
                prompt_ids,
                take(completion),
                np.full(completion, -1.0, np.float32),
                (VersionSpan(0, prompt, 0),),
                (VersionSpan(0, completion, 0),),
                routes=RouteBlock(np.concatenate((prompt_routes, draw(completion)))),
            )
            records.append(
                TrajectoryRecord(f"r{group}-{member}", f"g{group}", (exchange,), float(member % 2))
            )
        groups.append(records)
    return groups


class Sources:
    """Where each token of a batch comes from, found by its id: ``record`` and ``position``, int64 ``[T]``."""

    def __init__(self, groups: list[list[TrajectoryRecord]], token_ids: np.ndarray) -> None:
        records = [record for group in groups for record in group]
        self.blocks = [record.exchanges[0].routes.experts for record in records]
        count = int(token_ids.max()) + 1
        record_of, position_of = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for index, record in enumerate(records):
            exchange = record.exchanges[0]
            ids = np.concatenate((exchange.prompt_ids, exchange.completion_ids))[: len(self.blocks[index])]
            known = ids[ids < count]
            record_of[known], position_of[known] = index, np.arange(len(known))
        self.record, self.position = record_of[token_ids], position_of[token_ids]


def token_by_token(sources: Sources) -> np.ndarray:
    """The routes of a batch, one token after the other."""
    blocks = sources.blocks
    return np.stack(
        [
            blocks[record][position]
            for record, position in zip(sources.record.tolist(), sources.position.tolist(), strict=True)
        ]
    )


def by_index(sources: Sources) -> np.ndarray:
    """The routes of a batch: all records joined, and one index for each token."""
    joined = np.concatenate(sources.blocks)
    starts = np.cumsum([0, *(len(block) for block in sources.blocks)])[:-1]
    return joined[starts[sources.record] + sources.position]


def copy_to_new_segment(tensors: list[np.ndarray]) -> SharedMemory:
    """All tensors of a batch, one behind the other in a new segment."""
    segment = SharedMemory(create=True, size=sum(tensor.nbytes for tensor in tensors))
    end = 0
    for tensor in tensors:
        target = np.frombuffer(segment.buf, tensor.dtype, tensor.size, end).reshape(tensor.shape)
        target[:] = tensor
        end += tensor.nbytes
        del target
    return segment
