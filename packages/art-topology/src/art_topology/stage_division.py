"""How many decoder layers each stage gets when no layout string says so.

Source: ``TransformerConfig.__post_init__`` and ``transformer_block.get_num_layers_to_build`` of
megatron-core. Every function returns the layers of the ``pp * vpp`` stages in the microbatch's order.
"""

from math import isqrt

from art_topology.passes.findings import either
from art_topology.stage_strings import StageError, write_stages

_FIRST = "num_layers_in_first_pipeline_stage"
_LAST = "num_layers_in_last_pipeline_stage"
_MOST = 1_000_000


def divide(
    *,
    num_layers: int,
    pp: int,
    vpp: int,
    mtp: int,
    account_for_embedding: bool,
    account_for_loss: bool,
    first_stage_layers: int | None,
    last_stage_layers: int | None,
) -> list[int]:
    """Evenly, but for what the options say.

    Raises:
        StageError: megatron-core refuses or fails at this division.
    """
    _check_sizes(num_layers, pp, vpp, mtp)
    if first_stage_layers is None and last_stage_layers is None:
        return _even(num_layers, pp, vpp, mtp, account_for_embedding, account_for_loss)
    if account_for_embedding or account_for_loss:
        raise StageError(
            "layers of the first or last stage are given, so embedding and loss cannot count as layers too",
            "leave the one or the other out",
            _FIRST if first_stage_layers is not None else _LAST,
        )
    return _uneven(num_layers, pp, vpp, mtp, first_stage_layers, last_stage_layers)


def balance(*, num_layers: int, pp: int, vpp: int, mtp: int) -> list[int]:
    """As evenly as possible when embedding, each MTP layer and loss weigh as much as a decoder layer.

    Raises:
        StageError: a number is below its least.
    """
    _check_sizes(num_layers, pp, vpp, mtp)
    count = pp * vpp
    load = [0] * count
    load[0] += 1
    load[-1] += 1 + mtp
    runs = [0] * count
    # Fill the lowest stages up to a common level: `level` and `extra` by bisection over the total.
    low, high = 0, num_layers + max(load)
    while low < high:
        level = (low + high + 1) // 2
        if sum(max(0, level - weight) for weight in load) <= num_layers:
            low = level
        else:
            high = level - 1
    runs = [max(0, low - weight) for weight in load]
    rest = num_layers - sum(runs)
    # What is left over is less than one for each stage at the level; the middle gets it, spread evenly.
    at_level = [i for i in range(count) if load[i] + runs[i] == low]
    inner = [i for i in at_level if 0 < i < count - 1] or at_level
    chosen = inner[:rest] + [i for i in at_level if i not in inner][: max(0, rest - len(inner))]
    for i in chosen:
        runs[i] += 1
    return runs


def stage_symbols(runs: list[int], mtp: int) -> list[str]:
    """The letters of each stage: the embedding before the first layer, MTP and loss after the last."""
    last = len(runs) - 1
    return ["E" * (i == 0) + "t" * count + ("m" * mtp + "L") * (i == last) for i, count in enumerate(runs)]


def _even(
    num_layers: int, pp: int, vpp: int, mtp: int, account_for_embedding: bool, account_for_loss: bool
) -> list[int]:
    total = num_layers + account_for_embedding + account_for_loss
    counted = [
        f"{num_layers} layers",
        *(["embedding"] if account_for_embedding else []),
        *(["loss"] if account_for_loss else []),
    ]
    what = counted[0] if len(counted) == 1 else f"{' + '.join(counted)} = {total}"
    if total % pp:
        raise StageError(
            f"{what} cannot be divided among pp={pp} stages",
            _or_layout(_nearest("pp", pp, total, vpp), num_layers, pp, vpp, mtp),
            "pp",
        )
    if total // pp % vpp:
        raise StageError(
            f"{what} are {total // pp} for each of pp={pp} ranks, which cannot be divided into "
            f"vpp={vpp} virtual stages",
            _or_layout(_nearest("vpp", vpp, total // pp, 1), num_layers, pp, vpp, mtp),
            "vpp",
        )
    runs = [total // pp // vpp] * (pp * vpp)
    runs[0] -= account_for_embedding
    runs[-1] -= account_for_loss
    return runs


def _uneven(num_layers: int, pp: int, vpp: int, mtp: int, first: int | None, last: int | None) -> list[int]:
    given = {field: count for field, count in ((_FIRST, first), (_LAST, last)) if count is not None}
    field = next(iter(given))
    sizes = " and ".join(f"{name}={count}" for name, count in given.items())
    ranks, left = pp - len(given), num_layers - sum(given.values())
    if pp == 1 and (len(given) > 1 or left):
        raise StageError(
            f"{sizes}, but with pp=1 the only stage holds all {num_layers} layers",
            f"leave {'both' if len(given) > 1 else 'it'} out",
            field,
        )
    for name, count in given.items():
        if count < 1 or count % vpp:
            why = "is below 1" if count < 1 else f"cannot be divided into vpp={vpp} virtual stages"
            raise StageError(f"{name}={count} {why}", _ends_hint(num_layers, pp, vpp, mtp, given, name), name)
    if ranks == 0 and (left or vpp > 1) and pp > 1:
        why = (
            f"place {num_layers - left} layers, but the model has {num_layers}"
            if left
            else f"leave no stage between first and last, by whose number megatron-core divides if vpp={vpp}"
        )
        raise StageError(
            f"{sizes} with pp={pp} {why}", _ends_hint(num_layers, pp, vpp, mtp, given, field), field
        )
    if ranks and (left < ranks * vpp or left % (ranks * vpp)):
        stages = f"{ranks} stages" if vpp == 1 else f"{ranks} ranks of vpp={vpp} virtual stages"
        raise StageError(
            f"besides {sizes}, {left} of {num_layers} layers are to be divided among {stages}",
            _ends_hint(num_layers, pp, vpp, mtp, given, field),
            field,
        )
    runs = [left // (ranks * vpp) if ranks else 0] * pp
    if first is not None:
        runs[0] = first // vpp
    if last is not None:
        runs[-1] = last // vpp
    return runs * vpp


def _ends_hint(num_layers: int, pp: int, vpp: int, mtp: int, given: dict[str, int], field: str) -> str:
    """The nearest number for ``field`` with which everything divides, or a layout if there is none."""
    others = [count for name, count in given.items() if name != field]
    ranks, rest = pp - len(given), num_layers - sum(others)
    works: list[int] = []
    if all(count > 0 and count % vpp == 0 for count in others):
        if ranks == 0:
            works = [rest] if rest > 0 and vpp == 1 else []
        else:  # it repeats every ranks * vpp layers
            unit = ranks * vpp
            residue = rest % unit
            base = max(0, given[field] - residue) // unit * unit + residue
            near = (base - unit, base, base + unit, residue or unit, rest - unit)
            works = [count for count in near if 0 < count <= rest - unit and count % vpp == 0]
    if works:
        return f"use {field}={min(works, key=lambda count: abs(count - given[field]))}"
    return f"leave {' and '.join(given)} out; {_layout_hint(num_layers, pp, vpp, mtp)}"


def _or_layout(nearest: str | None, num_layers: int, pp: int, vpp: int, mtp: int) -> str:
    uneven = _layout_hint(num_layers, pp, vpp, mtp)
    return either(f"use {nearest}" if nearest else "", uneven)


def _layout_hint(num_layers: int, pp: int, vpp: int, mtp: int) -> str:
    runs = balance(num_layers=num_layers, pp=pp, vpp=vpp, mtp=mtp)
    return f"divide unevenly by pipeline_layout = {write_stages(stage_symbols(runs, mtp))!r}"


def _nearest(name: str, wanted: int, total: int, others: int) -> str | None:
    """``name=value`` for the value nearest to ``wanted`` that divides ``total`` together with ``others``.

    With virtual stages there is more than one rank.
    """
    small = [d for d in range(1, isqrt(total) + 1) if total % d == 0]
    divisors = [d for d in {*small, *(total // d for d in small)} if total // d % others == 0]
    works = [d for d in divisors if d > 1 or others == 1]
    return f"{name}={min(works, key=lambda d: (abs(d - wanted), d))}" if works else None


def _check_sizes(num_layers: int, pp: int, vpp: int, mtp: int) -> None:
    for name, value, least in (
        ("num_layers", num_layers, 1),
        ("pp", pp, 1),
        ("vpp", vpp, 1),
        ("mtp", mtp, 0),
    ):
        if value < least:
            raise StageError(f"{name}={value} is below {least}", f"use {name}={least} or more", name)
        if value > _MOST:
            raise StageError(f"{name}={value} is above {_MOST:,}", f"use at most {name}={_MOST}", name)
    if pp * vpp > _MOST:
        raise StageError(f"pp*vpp = {pp}*{vpp} is above {_MOST:,} stages", "use a smaller pp or vpp", "pp")
    if vpp > 1 and pp == 1:
        raise StageError(
            f"vpp={vpp} interleaves pipeline stages, but pp=1 has only one",
            "set pp above 1, or leave vpp out",
            "vpp",
        )
