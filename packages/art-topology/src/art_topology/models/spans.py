"""How many keys a query attends to: sums over the positions of a causal sequence, in closed form."""


def mean_capped(length: float, cap: float | None, step: int = 1) -> float:
    """Mean over the positions 1..length of ``min(position / step, cap)``.

    Args:
        length: Tokens of the sequence, at least 1.
        cap: Most keys that a query attends to (a window, a top-k); None: all.
        step: Tokens that one key stands for (compressed keys). With ``step`` above 1 the rounding down of
            ``position / step`` is counted exactly for whole lengths.
    """
    if step == 1:
        if cap is None or length <= cap:
            return (length + 1) / 2
        return (cap * (cap + 1) / 2 + (length - cap) * cap) / length
    keys, rest = divmod(int(length), step)
    if cap is None or keys <= cap:
        total = step * (keys - 1) * keys / 2 + keys * (rest + 1)
    else:
        total = step * (cap - 1) * cap / 2 + cap * (length - cap * step + 1)
    return total / length
