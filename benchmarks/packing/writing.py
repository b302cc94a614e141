"""Planning and writing a batch: ART from records to all its tensors, TRL from a dataset to a packed one."""

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from benchmarks.packing import data, peers
from benchmarks.table import Row, compare

from art_dataplane import AdvantageRule, LossWeightRule
from art_dataplane.batch import view_tensors
from art_dataplane.kl import KlRule
from art_dataplane.packing_plan import plan_packing, plan_scored_groups
from art_dataplane.scoring import score_groups

COUNT, ROW = 16_384, 8_192
RULE = AdvantageRule(zero_variance="keep")
_PACKED = {"trl": "ids and six columns of the same content", "trl_ids": "ids alone"}


def measure(turns: Callable[..., Any], seed: int) -> tuple[list[Row], dict[str, Any]]:
    """Times both on 16,384 sequences that share nothing."""
    sizes = data.lengths(COUNT, ROW, seed)
    rollouts = data.different_prompts(sizes, seed)
    groups = data.records(rollouts)
    scored, excluded = score_groups(groups, RULE)
    buffer = memoryview(bytearray(1 << 30))  # as a segment that is used again

    def art() -> Any:
        plan = plan_packing(groups, packed_sequence_length=ROW, policy_version=3, advantage=RULE)
        plan.write(buffer)
        return plan

    def art_without_checks() -> Any:
        plan = plan_scored_groups(
            scored,
            excluded,
            packed_sequence_length=ROW,
            advantage=RULE,
            loss_weight=LossWeightRule(),
            kl=KlRule(),
        )
        plan.write(buffer)
        return plan

    pack_dataset, version = peers.trl_packing()
    ids = peers.arrow_dataset({"input_ids": [each.tokens for each in rollouts]})
    columns = peers.arrow_dataset(_columns(rollouts))
    options = {"batch_size": COUNT, "load_from_cache_file": False}
    seconds, results = turns(
        art=art,
        art_without_checks=art_without_checks,
        trl=lambda: pack_dataset(columns, ROW, "bfd", map_kwargs=options),
        trl_ids=lambda: pack_dataset(ids, ROW, "bfd", map_kwargs=options),
    )
    plan = results["art"]
    _check(plan, buffer, results["trl"], results["trl_ids"], rollouts)
    print(f"Plan and write {COUNT:,} sequences, {int(sizes.sum()):,} tokens, {ROW:,} to a row")
    names = {
        "art": "ART: checks, advantages, plan, all 13 tensors",
        "art_without_checks": "ART: plan and all 13 tensors",
        "trl": f"TRL {version}: ids and 6 columns of the same content",
        "trl_ids": f"TRL {version}: ids alone",
    }
    rows = {"art": plan.counts.row_count, "trl": len(results["trl"]), "trl_ids": len(results["trl_ids"])}
    for side, name in names.items():
        print(f"  {name:<52}{1e3 * median(seconds[side]):9.1f} ms {rows.get(side, rows['art']):6,} rows")
    table = []
    for side, what in (("art_without_checks", "plan and write"), ("art", "  with all checks")):
        for peer, content in (("trl", "same content"), ("trl_ids", "ids only")):
            row = compare(
                f"{what}, {content}",
                f"TRL {version}",
                seconds[side],
                seconds[peer],
                aim=5.0 if side == "art_without_checks" else None,
                note=f"ART writes all 13 tensors of a batch; TRL's pack_dataset (bfd) packs {_PACKED[peer]}",
            )
            table.append(row)
            print(f"  time, {peer} / {side}, median of pairs: {row.ratio:.1f}")
    return table, {"seconds": seconds, "rows": rows, "tokens": int(sizes.sum()), "trl": version}


def _columns(rollouts: list[data.Rollout]) -> dict[str, list[np.ndarray]]:
    """What ART's batch says of each token, as columns: what is not known of a prompt is 0."""

    def spread(values: list[float], dtype: type) -> list[np.ndarray]:
        return [np.full(len(each.tokens), value, dtype) for each, value in zip(rollouts, values, strict=True)]

    return {
        "input_ids": [each.tokens for each in rollouts],
        "labels": [np.concatenate((each.prompt[1:], each.completion)) for each in rollouts],
        "old_logprobs": [
            np.concatenate((np.zeros(len(each.prompt) - 1, np.float32), each.logprobs)) for each in rollouts
        ],
        "advantages": spread([each.reward for each in rollouts], np.float32),
        "weights": spread([1.0] * len(rollouts), np.float32),
        "versions": spread([3] * len(rollouts), np.int32),
        "temperatures": spread([1.0] * len(rollouts), np.float32),
    }


def _check(plan: Any, buffer: memoryview, trl: Any, trl_ids: Any, rollouts: list[data.Rollout]) -> None:
    """All tokens are there once, in rows that are not too long, and all targets."""
    out = view_tensors(plan.tensors, buffer)
    tokens = np.sort(np.concatenate([each.tokens for each in rollouts]))
    shared = len(tokens) - plan.counts.physical_tokens  # by chance, where random prompts begin alike
    if np.diff(out["row_offsets"]).max() > ROW or not 0 <= shared < len(tokens) // 100:
        raise SystemExit("ART's rows are too long or lack tokens")
    targets = np.concatenate([each.completion for each in rollouts])
    if not np.array_equal(np.sort(out["loss_target"]), np.sort(targets)):
        raise SystemExit("ART's batch lacks targets")
    for packed in (trl, trl_ids):
        rows = packed.with_format("arrow")[:]["input_ids"].combine_chunks()
        if np.diff(rows.offsets.to_numpy()).max() > ROW:
            raise SystemExit("TRL's rows are too long")
        if not np.array_equal(np.sort(rows.flatten().to_numpy()), tokens):
            raise SystemExit("TRL's rows lack tokens")
