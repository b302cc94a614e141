"""One process: megatron-core's generator makes all groups of 14 families; those of some ranks are found."""

import sys
import warnings

from benchmarks.rank_layout.task import (
    DENSE,
    EXPERT,
    GPUS_PER_HOST,
    Stopwatch,
    peak_bytes,
    ranks_asked,
    say,
    sizes,
)


def main() -> None:
    """Takes the number of hosts."""
    hosts = int(sys.argv[1])
    world = hosts * GPUS_PER_HOST
    wanted = sizes(hosts)
    watch = Stopwatch()
    warnings.simplefilter("ignore")
    with watch("import"):
        from megatron.core.parallel_state import RankGenerator
    before = peak_bytes()
    order = "tp-cp-ep-dp-pp"
    tp, cp, dp, pp = (wanted[name] for name in ("tp", "cp", "dp", "pp"))
    with watch("generate"):
        dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
        expert = RankGenerator(tp=1, ep=wanted["ep"], dp=wanted["expert_dp"], pp=pp, cp=1, order=order)
        families = {name: dense.get_ranks(token) for name, token in DENSE.items()}
        families |= {name: expert.get_ranks(token) for name, token in EXPERT.items()}
    peak = peak_bytes()
    with watch("answer"):
        groups = [
            {name: next(ranks for ranks in made if rank in ranks) for name, made in families.items()}
            for rank in ranks_asked(world)
        ]
    say(watch, groups, peak_bytes=peak, bytes_before=before, ranks=world, families=len(families))


if __name__ == "__main__":
    main()
