"""Routes of mixture-of-experts models: which experts each token went to, from the server to the batch.

Routes are blocks ``[tokens, layers, topk]`` of expert ids, token by token, so that the routes of neighbouring
tokens are neighbouring bytes. What always holds:

- A block is never converted and never copied but once: from where it was received into the batch.
- What is done per token (checking ids, comparing routes) is done when a record arrives or a batch is planned.
  What is left for the end, :class:`RoutePlan`, costs one step per run of tokens that stay together.
- The dtype follows from the number of experts: uint8 up to 256, uint16 up to 65,536.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from art_dataplane.copying import copy_arrays
from art_dataplane.errors import PackingError, RecordError

MAGIC = b"ARTROUT1"
"""The first bytes of binary routes."""

_HEADER = struct.Struct("<8sHHIQ")  # magic, bytes per id, topk, layers, tokens
_COMPARED_BYTES = 1 << 18


def route_dtype(expert_count: int) -> np.dtype:
    """The dtype of ids of ``expert_count`` experts: uint8 up to 256 of them, uint16 up to 65,536.

    Raises:
        RecordError: there is no expert, or more than uint16 can count.
    """
    if not 0 < expert_count <= 1 << 16:
        raise RecordError(f"routes among {expert_count} experts; there must be 1 to 65,536")
    return np.dtype(np.uint8 if expert_count <= 1 << 8 else np.uint16)


def check_routes(experts: np.ndarray, name: str, *, expert_count: int) -> None:
    """Checks what a server says about routes against its model; once, when a record arrives.

    Some kernels return zeros instead of routes, and a server that recomputes a request may lose some: zeros
    that no router can have chosen are refused. With ``topk`` above 1 that is a token whose ids are 0
    everywhere, since the experts of one token in one layer differ; otherwise a block of zeros only.

    Args:
        experts: uint8 or uint16 ``[tokens, layers, topk]``.
        name: of the record, for the message.
        expert_count: how many experts a layer of the model has.

    Raises:
        RecordError: another shape, another dtype than :func:`route_dtype` gives, an id beyond the experts, or
            zeros as above; with the record's name and the first place.
    """
    dtype = route_dtype(expert_count)
    if experts.ndim != 3 or experts.dtype != dtype or 0 in experts.shape[1:]:
        raise RecordError(
            f"record {name}: routes among {expert_count} experts must be {dtype.name} [tokens, layers, "
            f"topk], not {experts.dtype.name} {list(experts.shape)}"
        )
    if not len(experts):
        return
    if expert_count <= np.iinfo(dtype).max and experts.max() >= expert_count:
        token, layer, _ = (int(index) for index in np.argwhere(experts >= expert_count)[0])
        raise RecordError(
            f"record {name}: token {token} went to expert {int(experts[token, layer].max())} in layer "
            f"{layer}; the model has {expert_count}"
        )
    if expert_count == 1:
        return
    rows = experts.reshape(len(experts), -1)
    empty = ~rows.any(axis=1) if experts.shape[2] > 1 else np.full(len(rows), not rows.any())
    if empty.any():
        raise RecordError(
            f"record {name}: the routes of {int(empty.sum())} of {len(experts)} tokens, the first "
            f"{int(empty.argmax())}, are all zero: the server's kernel did not report them, or they were "
            "lost when the request was preempted; sample it again, or turn route capture off"
        )


class SequenceRoutes(NamedTuple):
    """Routes of the tokens of one sequence: blocks that follow each other, not joined.

    Args:
        blocks: each ``[tokens, layers, topk]``, of one dtype and the same layers and topk; at least one.
    """

    blocks: tuple[np.ndarray, ...]

    @classmethod
    def of_chain(cls, blocks: Sequence[np.ndarray], token_count: int, name: str) -> Self:
        """Routes of a conversation's first ``token_count`` tokens, each from the first block that holds it.

        Args:
            blocks: of the exchanges of one branch, in their order; each begins at the conversation's first
                token and is at least as long as the one before.
            token_count: how many tokens are wanted.
            name: of the record, for messages.

        Raises:
            PackingError: the blocks differ in dtype, layers or topk, or end before ``token_count`` tokens.
        """
        if len({(block.dtype, block.shape[1:]) for block in blocks}) != 1:
            raise PackingError(
                f"record {name}: routes of one branch must have one dtype and shape, not "
                + ", ".join(f"{block.dtype.name} {list(block.shape)}" for block in blocks)
            )
        parts: list[np.ndarray] = []
        end = 0
        for block in blocks:
            if end < min(len(block), token_count):
                parts.append(block[end:token_count])
                end = min(len(block), token_count)
        if end < token_count or not parts:
            raise PackingError(f"record {name}: routes of {end} tokens; {token_count} are to be computed")
        return cls(tuple(parts))

    @property
    def dtype(self) -> np.dtype:
        """uint8 or uint16."""
        return self.blocks[0].dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """Tokens, layers, topk."""
        layers, topk = self.blocks[0].shape[1:]
        return sum(map(len, self.blocks)), layers, topk

    def parts(self, begin: int, end: int) -> list[np.ndarray]:
        """Views of the routes of tokens ``[begin, end)``, in order, as far as the sequence has them."""
        if len(self.blocks) == 1:
            return [self.blocks[0][begin:end]] if begin < end else []
        found: list[np.ndarray] = []
        first = 0
        for block in self.blocks:
            low, high = max(begin - first, 0), min(end - first, len(block))
            if low < high:
                found.append(block[low:high])
            first += len(block)
        return found


def common_tokens(first: SequenceRoutes, second: SequenceRoutes, limit: int) -> int:
    """How many of the first ``limit`` tokens, counted from the first on, have the same routes in both.

    Raises:
        PackingError: one of them has fewer tokens than ``limit``.
    """
    shorter = min(first.shape[0], second.shape[0])
    if limit > shorter:
        raise PackingError(f"{limit} tokens cannot be compared in routes of {shorter}")
    if first.dtype != second.dtype or first.shape[1:] != second.shape[1:]:
        return 0
    step = max(1, _COMPARED_BYTES // max(1, first.blocks[0][:1].nbytes))
    done = 0
    while done < limit:
        ours, theirs = first.parts(done, limit)[0], second.parts(done, limit)[0]
        count = min(len(ours), len(theirs), step)
        same = ours[:count] == theirs[:count]
        if not same.all():
            return done + int(same.reshape(count, -1).all(axis=1).argmin())
        done += count
    return limit


class RoutePlan:
    """Where each run of routes goes in a batch: decided while it is planned, carried out by :meth:`write`.

    Args:
        dtype: uint8 or uint16.
        layers: of the model.
        topk: experts of each token in each layer.
    """

    def __init__(self, dtype: np.dtype, layers: int, topk: int) -> None:
        self._dtype = dtype
        self._row = (layers, topk)
        self._parts: list[np.ndarray] = []
        self._token_count = 0

    @property
    def token_count(self) -> int:
        """Tokens that have been placed."""
        return self._token_count

    @property
    def shape(self) -> tuple[int, int, int]:
        """Tokens, layers and topk of what :meth:`write` fills."""
        return (self._token_count, *self._row)

    @property
    def dtype(self) -> np.dtype:
        """uint8 or uint16."""
        return self._dtype

    def place(self, routes: SequenceRoutes, begin: int, end: int) -> None:
        """Puts tokens ``[begin, end)`` of a sequence behind what was placed before. No routes are touched.

        Raises:
            PackingError: another dtype or shape than the plan's, or the sequence has no such tokens.
        """
        block, parts = routes.blocks[0], routes.parts(begin, end)
        if (
            block.dtype != self._dtype
            or block.shape[1:] != self._row
            or not 0 <= begin <= end
            or sum(map(len, parts)) != end - begin
        ):
            raise PackingError(
                f"tokens {begin} to {end} of routes {routes.dtype.name} {list(routes.shape)} cannot be "
                f"placed among routes {self._dtype.name} [tokens, {self._row[0]}, {self._row[1]}]"
            )
        self._parts += parts
        self._token_count += end - begin

    def write(self, out: np.ndarray) -> None:
        """Copies the routes of all placed tokens to ``out``, which has :attr:`dtype` and :attr:`shape`.

        Raises:
            PackingError: it has not.
        """
        if out.shape != self.shape or out.dtype != self._dtype:
            raise PackingError(
                f"routes {self._dtype.name} {list(self.shape)} do not go into {out.dtype.name} "
                f"{list(out.shape)}"
            )
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        end = 0
        for part in self._parts:
            pairs.append((out[end : end + len(part)], part))
            end += len(part)
        copy_arrays(pairs)


def encode_routes(experts: np.ndarray) -> tuple[bytes, memoryview]:
    """Binary routes for a server's answer: a header of 24 bytes, and the ids' bytes to send behind it.

    Nothing is copied when ``experts`` is contiguous. Little-endian: the magic ``ARTROUT1``, uint16 bytes per
    id (1 or 2), uint16 topk, uint32 layers, uint64 tokens; then the ids, row-major.

    Raises:
        RecordError: not uint8 or uint16 ``[tokens, layers, topk]``.
    """
    if experts.ndim != 3 or experts.dtype.name not in ("uint8", "uint16"):
        raise RecordError(
            f"routes are uint8 or uint16 [tokens, layers, topk], not {experts.dtype.name} "
            f"{list(experts.shape)}"
        )
    tokens, layers, topk = experts.shape
    header = _HEADER.pack(MAGIC, experts.itemsize, topk, layers, tokens)
    data = np.ascontiguousarray(experts, experts.dtype.newbyteorder("<"))
    return header, memoryview(data.reshape(-1).view(np.uint8))


def decode_routes(data: bytes | memoryview) -> np.ndarray:
    """The routes in what :func:`encode_routes` gave, joined.

    Returns:
        uint8 or uint16 ``[tokens, layers, topk]``: a view of ``data``.

    Raises:
        RecordError: these are no routes, or there are too few or too many bytes.
    """
    view = memoryview(data).cast("B")
    if len(view) < _HEADER.size:
        raise RecordError(f"{len(view)} bytes are no routes; their header has {_HEADER.size}")
    magic, item_size, topk, layers, tokens = _HEADER.unpack_from(view)
    if magic != MAGIC or item_size not in (1, 2):
        raise RecordError(f"bytes that begin with {bytes(view[:10])!r} are no routes")
    expected = _HEADER.size + item_size * topk * layers * tokens
    if len(view) != expected:
        raise RecordError(
            f"routes of {tokens} tokens, {layers} layers and {topk} experts need {expected} bytes; "
            f"there are {len(view)}"
        )
    ids = np.frombuffer(view, "<u1" if item_size == 1 else "<u2", offset=_HEADER.size)
    return ids.reshape(tokens, layers, topk)
