"""A plan as a file that ``check`` accepts."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from art_topology.commands.sources import STDIN, TAKEN, CommandError, write
from art_topology.commands.toml_text import topology_toml
from art_topology.files import ModelSpec, read_topology_text
from art_topology.reading import read_regular

if TYPE_CHECKING:
    from art_topology.commands.plan_inputs import Asked
    from art_topology.planner import Plan


def written(problem: Asked, plan: Plan, file: str, *, base_model: str | None, force: bool) -> None:
    """Writes a plan as TOML, after it has passed all checks.

    Raises:
        TopologyError: the cluster's file has something that the plan cannot run with; nothing is written.
        CommandError: the file is there, cannot be written, or has another suffix.
    """
    check_target(file, force=force)
    folder = Path() if file == STDIN else Path(file).parent
    text = plan_text(problem, plan, folder, base_model, "FILE" if file == STDIN else file)
    read_topology_text(text, "toml", name=None if file == STDIN else file, folder=folder).compile()
    write(file, text, force=force)


def check_target(file: str, *, force: bool) -> None:
    """Refuses what cannot be written, before anything is searched.

    Raises:
        CommandError: the file is there, its folder is not, or it has another suffix.
    """
    if file == STDIN:
        return
    path = Path(file)
    if path.suffix.lower() != ".toml":
        raise CommandError(f"{file}: a plan is written as TOML, to a file whose name ends with .toml")
    if not path.parent.exists():
        raise CommandError(f"{path.parent} does not exist: make the folder, or name another for {path.name}")
    if not path.parent.is_dir():
        raise CommandError(f"{path.parent} is no folder")
    if path.exists() and not force:
        raise CommandError(f"{file} {TAKEN}")


def plan_text(problem: Asked, plan: Plan, folder: Path, base_model: str | None, file: str = "FILE") -> str:
    """The plan as TOML; paths in it are relative to ``folder``. ``file`` is how its comments call it."""
    config = problem.config
    if isinstance(config, str):
        config = os.path.relpath(Path(problem.config_folder) / config, folder)
    spec = plan.topology(problem.cluster, base_model=base_model or _name(problem))
    spec = msgspec.structs.replace(spec, model=ModelSpec(config=config, name=None))
    cost = plan.cost
    both = f"training {cost.trainer.step_s:,.1f} s, rollouts {cost.rollout.rollout_s:,.1f} s"
    head = (
        f"{plan.layout.name}\n"
        f"Planned for {problem.gpus:,} x {problem.machine.gpu.name}: {plan.score:,.1f} tokens per second and "
        f"GPU, a step of {cost.step_s:,.1f} s ({both}).\n"
        f"Check it: art-topology check {shlex.quote(file)}"
    )
    comments = {}
    if problem.made_up and len(problem.cluster.hosts) > 1:
        comments["cluster"] = (
            "Name the network as it registers with NCCL, and set NCCL_NET to it on every host."
        )
        comments["cluster.hosts"] = "Put in the addresses of your hosts, by which the others reach them."
    text = topology_toml(spec, head=head, comments=comments)
    kept = [
        f"{name} = {value}\n"
        for name, value, said in (
            ("recompute", '"none"', problem.recompute == "none"),
            ("offload", "[]", problem.offload == ()),
        )
        if said
    ]  # defaults are left out, but these were asked for
    return text.replace("\n[workload]\n", "\n[workload]\n" + "".join(kept), 1)


def _name(problem: Asked) -> str:
    """The model as services name it: what the topology or the configuration says, else its folder."""
    if problem.model_name is not None:
        return problem.model_name
    config: Any = problem.config
    if isinstance(config, dict):
        return str(config.get("_name_or_path") or problem.model.model_type)
    path = Path(problem.config_folder) / config
    path = path / "config.json" if path.is_dir() else path
    try:
        said = json.loads(read_regular(path).decode("utf-8-sig")).get("_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise CommandError(f"the model {str(path)!r} cannot be read again: {error}") from error
    if isinstance(said, str) and said:
        return said
    return str(path.resolve().parent.name or path) if path.name == "config.json" else path.stem
