"""The page ``docs/planner-accuracy.md``: predictions beside measurements, with every error."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from statistics import mean

import msgspec

from accuracy import seeds
from accuracy.checkpoints import load_checkpoints
from accuracy.parts import parts, tried
from accuracy.predict import RL_GROUP_SIZE, RL_PROMPT_TOKENS, Prediction, machine_of, model_of, predict
from accuracy.rows import HERE, Row, Source, load_excluded, load_rows

TARGETS = {"step_time": 0.08, "memory": 0.05}
LARGE_MISS = 0.15
"""A scored row further off than this has a reason in ``misses.toml``."""
TITLES = {
    "step_time": "Time of a training step",
    "memory": "Memory",
    "rl_step": "Whole steps of reinforcement learning",
}
SETS = {"calibrate": "Calibration", "score": "Scored"}


class Miss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows that are missed for one reason."""

    rows: tuple[str, ...]
    why: str


def explanations() -> tuple[Miss, ...]:
    """Why rows are missed."""
    found = tomllib.loads((HERE / "misses.toml").read_text(encoding="utf-8"))
    return msgspec.convert(found["misses"], tuple[Miss, ...])


def render() -> str:
    """The whole page."""
    rows = load_rows()
    predictions = [predict(row) for row in rows]
    lines = [
        "# How accurate the planner is",
        "",
        "<!-- Made by `nox -s accuracy`. Change packages/art-topology/accuracy, not this page. -->",
        "",
        *_method(),
        *_summary(predictions),
        *_rounds(rows),
        *_seeds(),
        *_parameters([p for p in predictions if p.row.kind == "parameters"]),
        *_checkpoints(),
    ]
    for kind in ("memory", "step_time", "rl_step"):
        lines += _kind(kind, [p for p in predictions if p.row.kind == kind])
    lines += _sources(rows)
    return "\n".join(lines).rstrip() + "\n"


def _method() -> list[str]:
    return _paragraphs(
        """
        The planner's predictions are compared here with measurements that others published. The scored rows
        were chosen, written down and committed before the first prediction was made; what was left out, and
        by which rule, is listed at the end. Rows are divided by source: the constants of the cost model
        (`art_topology.cost.Calibration`) may be looked at against the calibration sources only, and no
        constant belongs to a row, a model or a layout. A test holds a digest of the scored rows, so that
        none can be dropped because it is missed.
        """,
        """
        A measured batch is planned as the trainer would run it: a micro batch of several sequences is one
        packed row of them. Where a source is silent about recomputation, the row says so and takes the
        setting written in it; nothing is chosen to make a row fit. An error is `predicted / measured - 1`:
        above zero the planner is too slow or too large.
        """,
        """
        What a source says of its program is part of a row: the division of the layers, dropout, attention
        without flash kernels, and the facts of the second round. They were written into the rows after the
        first prediction, for all rows whose source states them.
        """,
    )


def _rounds(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## Two rounds",
        "",
        *_paragraphs(
            """
            The first round's errors were published on this page, scored rows included: 10.7 % in memory, 24.4
            % in time, 33 % for models with experts, nearly all too fast. Who made the second round had seen
            them, so that its scored errors are no longer those of rows never looked at. What was chosen:
            """
        ),
        *(
            f"- {' '.join(line.split())}"
            for line in (
                """Facts of programs were added to all rows whose source, or whose program's own published
                settings and code, give them: sequence parallelism, the dispatcher of experts, its overlap,
                CUDA graphs, recomputed modules, the width of reduced gradients, Megatron-LM's loss. They are
                not constants; what they cost follows from what such code sends, moves and starts.""",
                """New calibration rows, 17 of them: newer software, Blackwell, models with experts (DGX Cloud
                Benchmarking's later pages, and Together AI's reports of the same recipes). The constants
                were set on the calibration rows alone, by coordinate descent over a coarse grid; no scored
                row was in it, and its best value was kept even where scored rows would like another.""",
                """Two constants were read, not fitted: attention on Blackwell from a published profile, and
                the bytes that biases and the clamped activation of GPT-OSS move from megatron-core's code.
                Such code was looked for because GPT-OSS was missed.""",
                """Sparse attention on Blackwell was set on one of this project's own measurements (below).
                """,
            )
        ),
        "",
        *_paragraphs(
            """
            What each part is worth, as the mean absolute error in time without it:
            """
        ),
        "| without | calibration | scored, dense | scored, experts |",
        "|---|---:|---:|---:|",
        *(
            f"| {found.what} | {found.calibration:.1%} | {found.dense:.1%} | {found.experts:.1%} |"
            for found in parts(rows, lambda row: bool(model_of(row).experts))
        ),
        "",
        *_paragraphs(
            """
            Constants that were tried and left out, with the mean absolute logarithmic error of the
            calibration rows, by which constants are chosen. The one row on Ampere, BLOOM, would have had a
            constant of its own.
            """
        ),
        "| instead | calibration |",
        "|---|---:|",
        *(f"| {what} | {error:.2%} |" for what, error in tried(rows)),
    ]
    return [*lines, ""]


def _summary(predictions: Sequence[Prediction]) -> list[str]:
    lines = [
        "## Summary",
        "",
        "| | rows | mean absolute error | median | worst | aim |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    counts = [p for p in predictions if p.row.kind == "parameters"]
    exact = sum(p.value == p.row.value for p in counts)
    lines.append(f"| Parameters, scored | {len(counts)} | {exact} exact | | {_worst(counts)} | exact |")
    for kind in ("memory", "step_time", "rl_step"):
        for name, title in SETS.items():
            some = [p for p in predictions if p.row.kind == kind and p.row.set == name]
            if some:
                aim = f"{TARGETS[kind]:.0%}" if name == "score" and kind in TARGETS else ""
                lines.append(f"| {TITLES[kind]}, {title.lower()} | {len(some)} | {_errors(some)} | {aim} |")
    lines += [
        "",
        "Published planners report mean errors of 3.7 to 15 % in time. The same rows by model and GPU:",
        "",
        "| | set | rows | mean absolute error | median | worst |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind in ("memory", "step_time"):
        for (name, group), some in _groups([p for p in predictions if p.row.kind == kind]):
            lines.append(
                f"| {TITLES[kind]}: {group} | {SETS[name].lower()} | {len(some)} | {_errors(some)} |"
            )
    return [*lines, ""]


def _groups(predictions: Sequence[Prediction]) -> list[tuple[tuple[str, str], list[Prediction]]]:
    """Predictions by set, by dense model or experts, and by architecture of the GPU."""
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for p in predictions:
        assert p.row.machine is not None
        model = "experts" if model_of(p.row).experts else "dense"
        group = f"{model}, {machine_of(p.row.machine).gpu.architecture.title()}"
        groups.setdefault((p.row.set, group), []).append(p)
    return sorted(groups.items())


def _errors(predictions: Sequence[Prediction]) -> str:
    errors = sorted(abs(p.error) for p in predictions)
    return f"{mean(errors):.1%} | {errors[len(errors) // 2]:.1%} | {_worst(predictions)}"


def _worst(predictions: Sequence[Prediction]) -> str:
    worst = max(predictions, key=lambda p: abs(p.error))
    return f"{worst.error:+.1%} ({worst.row.id})" if worst.error else "0"


def _seeds() -> list[str]:
    small_s, large_s = seeds.trainer_seconds()
    split = seeds.balanced_split()
    findings = seeds.findings()
    lines = [
        "## What this project measured",
        "",
        *_paragraphs(
            f"""
            Runs of GLM-5.2 and of layouts on H200, with LoRA. Their workload is known in part; the
            predictions use {seeds.ROWS} rows of {seeds.LENGTH:,} tokens, each one group of
            {seeds.WORKLOAD.group_size} completions of {seeds.WORKLOAD.completion_tokens:,} tokens to a
            prompt of {seeds.WORKLOAD.prompt_tokens:,}, rank {seeds.WORKLOAD.lora_rank}, whole layers
            recomputed. The H200 rows use the first 24 layers, which fit on 8 GPUs. With PP2/VPP3 each stage
            is taken to be CP8/EP8, which is not published either.
            """
        ),
        "| | measured | predicted | error |",
        "|---|---:|---:|---:|",
    ]
    for finding in findings:
        measured, predicted = finding.form.format(finding.measured), finding.form.format(finding.predicted)
        lines.append(
            f"| {finding.what} | {measured} | {predicted} | {finding.predicted / finding.measured - 1:+.1%} |"
        )
    lines += ["", *(f"- {finding.what}: {finding.why}" for finding in findings if finding.why)]
    lines += [
        "",
        *_paragraphs(
            """
            How many rows a step of these runs had is not known. The ratios for other numbers of rows:
            """
        ),
        "| rows of a step | CP8/EP8/DP2 over CP16/EP16 | over PP2/VPP3 |",
        "|---:|---:|---:|",
        *(f"| {rows} | {wide:.3f} | {piped:.3f} |" for rows, wide, piped in seeds.rows_matter()),
        f"| measured | {seeds.SPEED_OVER_WIDE:.3f} | {seeds.SPEED_OVER_PIPED:.3f} |",
        "",
        *_paragraphs(
            f"""
            Nor is it known which workload the loop of 16 + 8 GPUs ran: its score depends on whether trainer
            or rollouts wait. With 8 more trainer GPUs a score per GPU falls to 0.667 where rollouts set the
            pace already, and rises above 1 where they never do. The measured layouts were balanced by hand,
            so the prediction takes the workload that is balanced between them: rows of one group, of
            {split.group_size} completions of {split.completion_tokens:,} tokens, for which a training step
            takes {split.small_s:.0f} s on 8 GPUs and {split.large_s:.0f} s on 16, and rollouts their
            geometric mean, {split.rollout_s:.0f} s. Who chose this assumption knew the measured score. (To
            keep {seeds.SCORE_KEPT} exactly, rollouts would take
            {split.small_s / (seeds.SCORE_KEPT * 1.5):.0f} s.) For the workload of the other lines, with
            completions of {seeds.WORKLOAD.completion_tokens:,} tokens, a step takes {small_s:.0f} s on 8
            GPUs and {large_s:.0f} s on 16, and rollouts set the pace however the service divides the model:
            """
        ),
        "| TP | DP | engine step | rollouts of a step | score kept |",
        "|---:|---:|---:|---:|---:|",
        *(
            f"| {found.tp} | {found.dp} | {found.decode_step_s * 1e3:.1f} ms | {found.rollout_s:.0f} s "
            f"| {found.kept:.3f} |"
            for found in seeds.service_matters()
        ),
        "",
        *_paragraphs(
            f"""
            CP N with EP N was the most efficient layout at the least number of GPUs that hold a model. For
            the same workload, all layouts of powers of two that need at most {seeds.FILL:.0%} of the memory
            of a GPU (a dense model has no experts to divide, and its weights must be divided by TP):
            """
        ),
        "| model | machine | GPUs | layouts that fit | fastest | place of CP N/EP N | its speed |",
        "|---|---|---:|---:|---|---:|---:|",
    ]
    for found in seeds.minima():
        if not found.candidates:
            lines.append(f"| {found.model} | {found.machine} | {found.gpus} | 0 | | | |")
            continue
        best, place = found.candidates[0], found.place
        speed = found.candidates[place - 1].tokens_per_s if place else None
        share = f"{speed / best.tokens_per_s:.3f}" if speed else "does not fit"
        lines.append(
            f"| {found.model} | {found.machine} | {found.gpus} | {len(found.candidates)} | {best.name} "
            f"| {place or ''} | {share} |"
        )
    return [*lines, ""]


def _parameters(predictions: Sequence[Prediction]) -> list[str]:
    lines = [
        "## Parameters",
        "",
        "| model | published | predicted | difference | where |",
        "|---|---:|---:|---:|---|",
    ]
    for p in predictions:
        where = p.row.where + (f". {p.row.note}" if p.row.note else "")
        difference = int(p.value - p.row.value)
        name = p.row.model + (" with MTP" if p.row.include_mtp else "")
        lines.append(f"| {name} | {int(p.row.value):,} | {int(p.value):,} | {difference:,} | {where} |")
    return [*lines, ""]


def _checkpoints() -> list[str]:
    lines = [
        "## Quantized checkpoints",
        "",
        *_paragraphs(
            """
            What a service's weights take is read from `quantization_config` of the model's config.json:
            numbers of a few bits, their scales and zero points, and the dtype for what is not quantized.
            Nothing of it is fitted. Files have headers beside the tensors. The exact numbers were found in
            stored public repositories that quote the hub's.
            """
        ),
        "| checkpoint | quantized | published | predicted | error | published is |",
        "|---|---|---:|---:|---:|---|",
    ]
    for found in load_checkpoints():
        form = found.described.quantization
        assert form is not None
        error = found.predicted_bytes / found.bytes - 1
        lines.append(
            f"| {found.repository} | {form.told} | {found.bytes:,} | {found.predicted_bytes:,} | "
            f"{error:+.3%} | [{found.what}]({found.url}) |"
        )
    return [*lines, ""]


def _kind(kind: str, predictions: Sequence[Prediction]) -> list[str]:
    lines = [f"## {TITLES[kind]}", ""]
    if kind == "memory":
        lines += _paragraphs(
            """
            What torch's allocator counts, on the rank that was measured: its peak, or what stays allocated
            between steps (weights, gradients and optimizer). No cache of the allocator, no CUDA context.
            """
        )
    if kind == "rl_step":
        lines += _paragraphs(
            f"""
            Generation, log-probabilities and training one after another on the same GPUs, as on-policy NeMo
            RL runs them: the sum of the planner's rollouts, of a third of its training time for the
            log-probabilities, and of its training. The prompts' mean length and the group size are not
            published; the predictions use {RL_PROMPT_TOKENS} tokens and {RL_GROUP_SIZE} completions. Refit,
            padding and the unequal lengths of completions are not predicted.
            """
        )
    for name, title in SETS.items():
        some = [p for p in predictions if p.row.set == name]
        if some:
            lines += [f"### {title}", "", *_table(some), ""]
    return lines + _misses(predictions)


def _table(predictions: Iterable[Prediction]) -> list[str]:
    lines = [
        "| row | model | machine | GPUs | layout | sequence | batch | recompute "
        "| measured | predicted | error |",
        "|---|---|---|---:|---|---:|---:|---|---:|---:|---:|",
    ]
    for p in predictions:
        row = p.row
        given = "" if row.recompute_given else "?"
        layers = row.overrides.get("num_hidden_layers")
        model = (
            row.model
            + (f", {layers} layers" if layers else "")
            + (f", LoRA {row.lora_rank}" if row.lora_rank else "")
        )
        lines.append(
            f"| {row.id} | {model} | {row.machine} | {row.gpus} | {row.layout} | {row.sequence_length} | "
            f"{row.global_batch} x {row.micro_batch} | {row.recompute}{given} | {_amount(row, row.value)} | "
            f"{_amount(row, p.value)} | {p.error:+.1%} |"
        )
    return lines


def _misses(predictions: Sequence[Prediction]) -> list[str]:
    of_id = {p.row.id: p for p in predictions}
    lines = []
    for miss in explanations():
        rows = [of_id[name] for name in miss.rows if name in of_id]
        if rows:
            lines.append(f"- {', '.join(f'{p.row.id} ({p.error:+.1%})' for p in rows)}: {miss.why}")
    return ["### Why rows are missed", "", *lines, ""] if lines else []


def _amount(row: Row, value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if row.kind == "memory" else f"{value:.3f} s"


def _sources(rows: Sequence[Row]) -> list[str]:
    sources: dict[str, Source] = {row.source.id: row.source for row in rows if row.source}
    lines = ["## Sources", ""]
    for source in sources.values():
        own = [row for row in rows if row.source == source]
        lines += [
            f"### {source.title}",
            "",
            f"<{source.url}>. {SETS[source.set]}, {len(own)} rows. Found: {source.found}.",
            "",
        ]
        if own[0].kind != "parameters":
            lines += [f"- {row.id}: {row.where}. {row.note}".rstrip() for row in own]
            lines.append("")
    lines += ["## What was left out", "", *(f"- {item.what}: {item.why}" for item in load_excluded()), ""]
    return lines


def _paragraphs(*texts: str) -> list[str]:
    return [line for text in texts for line in (" ".join(text.split()), "")]
