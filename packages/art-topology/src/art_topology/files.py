"""Topologies in files: TOML, YAML and JSON, all with the names that the Python specifications have.

Unknown fields and repeated keys are refused: a misspelt option never becomes a default. Everything that is
wrong is reported at once, with its line and column: also what the rules say of the parts that can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from art_topology.cluster import ClusterSpec
from art_topology.compiler import compile_topology
from art_topology.diagnostics import Diagnostic, TopologyError, severity_of
from art_topology.serving import ModelServiceSpec
from art_topology.spec import Spec, SpecError
from art_topology.trainer import TrainerMeshSpec
from art_topology.workload import WorkloadSpec

if TYPE_CHECKING:
    from pathlib import Path

    from art_topology.compiled import RuntimeTopology
    from art_topology.hardware import HardwareTable
    from art_topology.models import ModelDescription
    from art_topology.positions import SourceText
    from art_topology.readers import FileFormat


class ModelSpec(Spec, frozen=True, kw_only=True):
    """The model that is trained and served.

    Args:
        config: Its Hugging Face ``config.json``, or the folder with it, relative to the topology's file; or
            the configuration itself, as a table.
        name: ``base_model`` of the services that serve it; by default that of all services, if they have one
            in common.
    """

    config: Annotated[str, msgspec.Meta(min_length=1)] | dict[str, Any]
    name: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class TopologySpec(Spec, frozen=True, kw_only=True):
    """What one file holds: the arguments of :func:`~art_topology.compile_topology`.

    Args:
        cluster: The hosts.
        trainer: The trainer's ranks, if the program trains.
        services: The model services.
        model: What is trained and served, to check its sizes against the parallelism.
        workload: What a step computes, to check its lengths against the parallelism.
    """

    cluster: ClusterSpec
    trainer: TrainerMeshSpec | None = None
    services: tuple[ModelServiceSpec, ...] = ()
    model: ModelSpec | None = None
    workload: WorkloadSpec | None = None


class TopologySource:
    """A topology that was read from text, with the way back from diagnostics to lines.

    Made by :func:`read_topology` and :func:`read_topology_text`. ``spec`` is what the text says, a
    :class:`TopologySpec`.
    """

    def __init__(
        self, spec: TopologySpec, source: SourceText, folder: Path, hardware: HardwareTable | None = None
    ) -> None:
        self.spec = spec
        self._source = source
        self._folder = folder
        self._hardware = hardware

    def model(self) -> ModelDescription | None:
        """The model, if the topology names one.

        Raises:
            SpecError: its configuration cannot be read (ART-F009).
        """
        if self.spec.model is None:
            return None
        from art_topology.models import ModelConfigError, load_model_config

        config = self.spec.model.config
        try:
            return load_model_config(config if isinstance(config, dict) else self._folder / config)
        except ModelConfigError as error:
            raise self._no_model({problem: _hint_of(problem) for problem in error.problems}) from error
        except (OSError, ValueError) as error:
            told = f"{config}: {getattr(error, 'strerror', None) or error}"
            hint = "name the config.json of the model, or its folder, relative to this file"
            raise self._no_model({told: hint}) from error

    def compile(self) -> RuntimeTopology:
        """The compiled topology; its warnings have their lines.

        Raises:
            SpecError: the model's configuration cannot be read; ``diagnostics`` has that, and everything
                that is wrong and can be known without it.
            TopologyError: something is wrong. Every diagnostic has its line and column.
        """
        spec = self.spec
        no_model: tuple[Diagnostic, ...] = ()
        try:
            model = self.model()
        except SpecError as error:
            model, no_model = None, error.diagnostics
        topology: RuntimeTopology | None = None
        try:
            topology = compile_topology(
                cluster=spec.cluster,
                trainer=spec.trainer,
                services=spec.services,
                model=model,
                workload=spec.workload,
                model_name=spec.model.name if spec.model is not None else None,
                hardware=self._hardware,
            )
            found = topology.warnings
        except TopologyError as error:
            found = error.diagnostics
        if no_model:
            beside = self._without_model(found)
            raise SpecError.of(*no_model, *located(beside, self._source))
        if topology is None:
            raise TopologyError(located(found, self._source))
        return msgspec.structs.replace(topology, warnings=located(found, self._source)) if found else topology

    def _without_model(self, found: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
        """Findings that the compiler made without the model, where the text has one that cannot be read."""
        named = self.spec.model is not None and self.spec.model.name is not None
        path = "model.name" if named else "model"
        return tuple(
            msgspec.structs.replace(each, path=path) if each.code == "ART-T408" else each for each in found
        )

    def _no_model(self, problems: dict[str, str]) -> SpecError:
        """The error of a model that cannot be read; a hint for each problem."""
        found = tuple(
            Diagnostic(
                code="ART-F009",
                severity=severity_of("ART-F009"),
                path="model.config",
                message=f"the model cannot be read: {problem}",
                hint=hint,
            )
            for problem, hint in problems.items()
        )
        return SpecError.of(*located(found, self._source))


def _hint_of(problem: str) -> str:
    if " is missing" in problem:
        return "add it to the model's configuration"
    return "correct the configuration, or leave [model] out: what needs no model is checked without it"


def read_topology(
    path: str | Path, kind: FileFormat | None = None, *, hardware: HardwareTable | None = None
) -> TopologySource:
    """Reads a file.

    Args:
        path: A regular file in UTF-8. Its suffix says the format: ``.toml``, ``.yaml``, ``.yml`` or
            ``.json``.
        kind: The format, whatever the suffix is: "toml", "yaml" or "json".
        hardware: The GPUs that ``gpu_model`` of a host may name; by default the package's table.

    Raises:
        SpecError: it cannot be read, is not well-formed, has fields that do not exist or repeated keys, or
            values of the wrong type or range; or PyYAML is missing for YAML. ``diagnostics`` on it are
            everything found, with lines and columns.
    """
    from pathlib import Path

    from art_topology.readers import read_file, read_file_as

    path = Path(path)
    source, kind = read_file(path) if kind is None else (read_file_as(path, kind), kind)
    spec = _spec(source, kind, path.parent, hardware)
    return TopologySource(spec, source, path.parent, hardware)


def read_topology_text(
    text: str,
    kind: FileFormat,
    *,
    name: str | None = None,
    folder: str | Path = ".",
    hardware: HardwareTable | None = None,
) -> TopologySource:
    """Reads the text of a file.

    Args:
        text: What the file holds.
        kind: Its format: "toml", "yaml" or "json".
        name: To be shown in diagnostics.
        folder: That paths in it are relative to.
        hardware: As for :func:`read_topology`.

    Raises:
        SpecError: as for :func:`read_topology`.
    """
    from pathlib import Path

    from art_topology.readers import source_of

    source = source_of(text, kind, name)
    spec = _spec(source, kind, Path(folder), hardware)
    return TopologySource(spec, source, Path(folder), hardware)


def load_topology(path: str | Path) -> TopologySpec:
    """What the file at ``path`` says, without its lines: :func:`read_topology` keeps them.

    Raises:
        SpecError: as for :func:`read_topology`.
    """
    return read_topology(path).spec


def parse_topology(text: str, kind: FileFormat) -> TopologySpec:
    """What the text of a file says, whose format is ``kind``: "toml", "yaml" or "json".

    Raises:
        SpecError: as for :func:`read_topology`.
    """
    return read_topology_text(text, kind).spec


def topology_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of :class:`TopologySpec`, for editors and other tools."""
    return msgspec.json.schema(TopologySpec)


def located(diagnostics: tuple[Diagnostic, ...], source: SourceText) -> tuple[Diagnostic, ...]:
    """The diagnostics with the places of their paths in a text."""
    return tuple(
        found
        if found.location is not None
        else msgspec.structs.replace(
            found,
            location=source.locate(found.path),
            related_locations=tuple(source.locate(path) for path in found.related),
        )
        for found in diagnostics
    )


def _spec(source: SourceText, kind: FileFormat, folder: Path, hardware: HardwareTable | None) -> TopologySpec:
    from art_topology.readers import read_values

    values = read_values(source, kind)
    try:
        return msgspec.convert(values, TopologySpec)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        from art_topology.validation import explain

        found = explain(values, TopologySpec)
        if not found:
            raise SpecError(f"{source.name or 'input'}: {error}") from error
        from art_topology.repairs import findings_beside

        beside = findings_beside(values, found, source, folder, hardware)
        raise SpecError.of(*located((*found, *beside), source)) from error
