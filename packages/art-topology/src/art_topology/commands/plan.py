"""``art-topology plan``: the fastest layouts of trainer and service on a cluster, each number explained."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_topology.commands.options import (
    Format,
    Gpu,
    Hardware,
    Json,
    Model,
    Network,
    WorkloadFile,
    file_completion,
)

MOST_PLANS = 1000
"""Plans beyond it are not made, however many could run."""
MEMORY_MARGIN = 0.04
"""The planner's, which is not loaded for the help; a test says that it is the same."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from art_topology.commands.plan_inputs import Asked
    from art_topology.planner import PlanReport

NAME = "plan"
EPILOG = """Examples:

`art-topology plan --model ./Qwen3-30B-A3B --gpu H200 --gpus 16`

`art-topology plan --model config.json --cluster cluster.toml --why 1`

`art-topology plan --model config.json --gpu B300 --gpus 24 --packed-length 131072 --prompt-tokens 2000
--completion-tokens 8000 --groups 32 --group-size 8 --write run.toml`

`art-topology plan --model config.json --gpu H100 --gpus 32 --network RoCE-400 --rejected`

The workload is that of `--workload`, else of the cluster's file, else a default that the output states;
options replace single fields. Plans are ordered by the tokens trained on per second and GPU of the cluster.

Exit codes: 0; 1 no layout can run, or the cluster's file has errors; 2 wrong use, or a file that cannot be
read or written.
"""
_WORKLOAD = "Workload"
_CLUSTER = "Cluster"


def _count(name: str, help_: str, panel: str, *more: str) -> Any:
    return typer.Option(
        name, *more, min=1, max=10**9, metavar="N", help=help_, rich_help_panel=panel, show_default=False
    )


def command(
    model: Model = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            metavar="FILE",
            help="Topology with the hosts; - is stdin.",
            show_default=False,
            rich_help_panel=_CLUSTER,
            **file_completion(),
        ),
    ] = None,
    gpu: Gpu = None,
    gpus: Annotated[int | None, _count("--gpus", "GPUs of the whole cluster.", _CLUSTER)] = None,
    gpus_per_host: Annotated[
        int | None, _count("--gpus-per-host", "By default the machine's.", _CLUSTER)
    ] = None,
    network: Network = None,
    hardware: Hardware = None,
    trainer_gpus: Annotated[
        int | None, _count("--trainer-gpus", "GPUs for the trainer; by default the search decides.", _CLUSTER)
    ] = None,
    workload: WorkloadFile = None,
    packed_length: Annotated[
        int | None, _count("--packed-length", "Tokens of a packed row.", _WORKLOAD)
    ] = None,
    groups: Annotated[int | None, _count("--groups", "Prompts of a step.", _WORKLOAD)] = None,
    group_size: Annotated[int | None, _count("--group-size", "Completions of a prompt.", _WORKLOAD)] = None,
    prompt_tokens: Annotated[
        int | None, _count("--prompt-tokens", "Mean length of a prompt.", _WORKLOAD)
    ] = None,
    completion_tokens: Annotated[
        int | None, _count("--completion-tokens", "Mean length of a completion.", _WORKLOAD)
    ] = None,
    concurrent: Annotated[
        int | None, _count("--concurrent", "Completions at once; by default all of a step.", _WORKLOAD)
    ] = None,
    lora_rank: Annotated[int | None, _count("--lora-rank", "Rank of the adapters.", _WORKLOAD)] = None,
    full_weights: Annotated[
        bool, typer.Option("--full-weights", help="Train all weights.", rich_help_panel=_WORKLOAD)
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="NAME",
            help="bfloat16, float16 or float32.",
            show_default=False,
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    recompute: Annotated[
        str | None,
        typer.Option(
            "--recompute",
            metavar="none|selective|full",
            help="The only recomputation to try; by default the workload's, or the search decides.",
            show_default=False,
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    offload: Annotated[
        str | None,
        typer.Option(
            "--offload",
            metavar="NAMES",
            help="The only offload to try: none, or optimizer, activations and weights joined by commas.",
            show_default=False,
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    service_weights: Annotated[
        str | None,
        typer.Option(
            "--service-weights",
            metavar="FORM",
            help="How the service's weights are stored: unquantized, fp8, mxfp4, nvfp4, int8 or int4; by "
            "default as the model's config.json says.",
            show_default=False,
        ),
    ] = None,
    memory_margin: Annotated[
        float,
        typer.Option(
            "--memory-margin",
            min=0,
            max=0.99,
            metavar="SHARE",
            help="Share of each GPU's memory that the trainer leaves free.",
            show_default="0.04",
        ),
    ] = MEMORY_MARGIN,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=MOST_PLANS, help="How many plans.")] = 10,
    why: Annotated[
        int | None,
        typer.Option(
            "--why",
            min=1,
            max=MOST_PLANS,
            metavar="N",
            help="Explain plan N part by part.",
            show_default=False,
        ),
    ] = None,
    rejected: Annotated[bool, typer.Option("--rejected", help="Show why other layouts cannot run.")] = False,
    write: Annotated[
        str | None,
        typer.Option(
            "--write", "-o", metavar="FILE", help="Write a plan as a TOML topology.", show_default=False
        ),
    ] = None,
    choose: Annotated[
        int | None,
        typer.Option(
            "--choose",
            min=1,
            max=MOST_PLANS,
            metavar="N",
            help="Which plan --write writes; by default the first.",
            show_default=False,
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model", metavar="NAME", help="Name of the model in the written file.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --write.")] = False,
    kind: Format = None,
    as_json: Json = False,
) -> None:
    """Search the layouts of trainer and service on a cluster and rank those that can run.

    Memory and time are computed from the model's config.json, the table of hardware and the workload; nothing
    is run and nothing is downloaded.
    """  # fmt: skip
    from art_topology.commands.output import print_json
    from art_topology.commands.plan_inputs import asked
    from art_topology.commands.plan_next import next_steps, on_fewer
    from art_topology.commands.plan_tables import plan_document, show_plans, show_rejected, show_why
    from art_topology.commands.plan_writing import check_target, written
    from art_topology.commands.sources import ERRORS, CommandError, refusals
    from art_topology.planner import plan as search

    with refusals(as_json):
        changes = {
            "packed_sequence_length": packed_length,
            "groups_per_step": groups,
            "group_size": group_size,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "concurrent_requests": concurrent,
            "lora_rank": lora_rank,
            "dtype": dtype,
        }
        if lora_rank is not None and full_weights:
            raise CommandError("--lora-rank and --full-weights exclude each other: give one of them")
        if write == "-" and as_json:
            raise CommandError("--write - and --json both print to standard output: give --write a file")
        if choose is not None and write is None:
            raise CommandError(f"--choose {choose} says which plan --write writes: give --write FILE, too")
        if write is not None:
            check_target(write, force=force)
        number = choose or 1
        problem = asked(
            model=model,
            cluster=cluster,
            kind=kind,
            gpu=gpu,
            gpus=gpus,
            gpus_per_host=gpus_per_host,
            network=network,
            hardware=hardware,
            workload=workload,
            changes={name: value for name, value in changes.items() if value is not None},
            full_weights=full_weights,
            recompute=recompute,
            offload=offload,
            memory_margin=memory_margin,
            service_weights=service_weights,
        )
        with _progress(problem):
            report = search(
                model=problem.model,
                cluster=problem.cluster,
                workload=problem.workload,
                hardware=problem.hardware,
                machine=problem.machine_name,
                trainer_gpus=trainer_gpus,
                limit=max(limit, why or 1, number),
                recompute=problem.recompute,
                offload=problem.offload,
                memory_margin=problem.memory_margin,
                service_weights=problem.service_weights,
            )
            fewer = on_fewer(problem, report) if report.ranked and trainer_gpus is None else None
            steps = () if report.ranked else next_steps(problem, report, trainer_gpus)
        for wanted, option in ((why, "--why"), (choose, "--choose")):
            if wanted is not None and report.ranked and wanted > len(report.ranked):
                raise CommandError(f"{option} {wanted}: there are {len(report.ranked)} plans")
        if write is not None and report.ranked:
            written(problem, report.ranked[number - 1], write, base_model=base_model, force=force)
            if write == "-":
                return
        if as_json:
            print_json(plan_document(problem, report, limit, write if report.ranked else None, steps, fewer))
        else:
            if why is None or not report.ranked:
                show_plans(problem, report, limit, fewer)
            else:
                show_why(problem, report.ranked[why - 1], why)
            if rejected or not report.ranked:
                show_rejected(report, steps)
            _show_written(report, write, number)
        if not report.ranked:
            raise typer.Exit(ERRORS)


def gib(count: float) -> str:
    """Bytes in GiB, with one decimal."""
    return f"{count / 2**30:,.1f}"


def _show_written(report: PlanReport, file: str | None, number: int) -> None:
    from art_topology.commands.output import say

    if file not in (None, "-") and report.ranked:
        say(f"plan {number} is written to {file}; check it: art-topology check {file}", "green")


@contextmanager
def _progress(problem: Asked) -> Iterator[None]:
    """A line with the time since the search began, on terminals, on standard error."""
    from art_topology.commands.output import is_terminal

    if not is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    told = f"searching layouts of {problem.gpus:,} GPUs"
    columns = (SpinnerColumn(), TextColumn(told, markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("search", total=None)
        yield
