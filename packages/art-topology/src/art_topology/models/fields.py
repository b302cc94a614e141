"""Reading fields of a configuration: everything that is missing or contradictory is collected, then refused
at once."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Names = str | tuple[str, ...]
"""A field, or the names that different families give to the same field, the preferred one first."""


class ModelConfigError(ValueError):
    """A configuration that does not describe a model that can be planned.

    Args:
        problems: One sentence for each field that is missing, wrong or contradicts another.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("the model cannot be planned from its configuration:\n- " + "\n- ".join(problems))
        self.problems = tuple(problems)


_PER_LAYER = {"head_dim", "num_key_value_heads", "num_attention_heads", "sliding_window", "intermediate_size"}


class Fields:
    """The fields of one configuration. A field that is null counts as absent.

    After reading, :meth:`finish` raises everything that was found wrong; until then a wrong field reads as
    its default, or as 1.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._problems: list[str] = []
        self._assumptions: list[str] = []
        self._read: set[str] = set()
        self._broken: set[str] = set()

    @property
    def values(self) -> Mapping[str, Any]:
        """All of them, as they stand."""
        return self._values

    def has(self, names: Names) -> bool:
        """Whether the field is there and not null."""
        return self.raw(names) is not None

    def raw(self, names: Names) -> Any:
        """The value as it stands; None if absent."""
        self.understood(names)
        for name in (names,) if isinstance(names, str) else names:
            if self._values.get(name) is not None:
                return self._values[name]
        return None

    def names(self, names: Names) -> bool:
        """Whether the field is there, null or not."""
        return any(name in self._values for name in ((names,) if isinstance(names, str) else names))

    def understood(self, names: Names) -> None:
        """Records that a field is known, also where its value makes no difference."""
        self._read.update((names,) if isinstance(names, str) else names)

    def unread(self) -> tuple[str, ...]:
        """Fields that say something and that nothing has read: not null, false, 0 or empty."""
        return tuple(name for name, value in self._values.items() if value and name not in self._read)

    def count(
        self, names: Names, meaning: str, default: int | None = None, *, least: int = 1, most: int = 2**40
    ) -> int:
        """An integer from ``least`` to ``most``; without a default it must be there."""
        value = self.raw(names)
        if value is None:
            if default is None:
                self._break(names, f"{_spelled(names)} is missing: {meaning}")
                return least
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._break(
                names,
                f"{self.found(names)} is {_shown(value)}, not a whole number of at least {least}: {meaning}",
            )
            return max(least, default or 1)
        if value > most:
            self._break(names, f"{self.found(names)} is more than {most:,}: {meaning}")
            return least
        return value

    def maybe_count(self, names: Names, meaning: str) -> int | None:
        """An integer of at least 1, or None if absent."""
        return self.count(names, meaning) if self.has(names) else None

    def flag(self, names: Names, meaning: str, default: bool | None = None) -> bool:
        """True or false; without a default it must be there."""
        value = self.raw(names)
        if value is None:
            if default is None:
                self.problem(f"{_spelled(names)} is missing: {meaning}")
            return bool(default)
        if not isinstance(value, bool):
            self.problem(f"{self.found(names)} is {_shown(value)}, neither true nor false: {meaning}")
            return bool(default)
        return value

    def words(self, names: Names, meaning: str, length: int) -> tuple[str, ...] | None:
        """One string for each of the first ``length`` layers, or None if absent."""
        value = self.raw(names)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
            self.problem(f"{self.found(names)} is {_shown(value)}, not a list of strings: {meaning}")
            return None
        if len(value) < length:
            self.problem(
                f"{self.found(names)} has {len(value)} entries for num_hidden_layers = {length}: {meaning}"
            )
            return None
        return tuple(value[:length])

    def numbers(self, names: Names, meaning: str) -> tuple[int, ...]:
        """A list of whole numbers of at least 0; empty if absent."""
        value = self.raw(names)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value
        ):
            self.problem(f"{self.found(names)} is {_shown(value)}, not a list of whole numbers: {meaning}")
            return ()
        return tuple(value)

    def overrides(self, length: int) -> tuple[dict[str, Any], ...]:
        """``per_layer_config``: for each layer the fields that it reads instead."""
        raw = self.raw("per_layer_config")
        if raw is None:
            return ({},) * length
        if not isinstance(raw, dict) or not all(isinstance(value, dict) for value in raw.values()):
            self.problem(
                "per_layer_config is not an object of objects: fields that single layers read instead"
            )
            return ({},) * length
        chosen = {str(key): value for key, value in raw.items()}
        for key in sorted(set(chosen) - {str(index) for index in range(length)}):
            self.problem(f"per_layer_config names layer {key!r} of {length} layers (num_hidden_layers)")
        for name in sorted({name for value in chosen.values() for name in value} - _PER_LAYER):
            self.problem(f"per_layer_config sets {name!r}; known for single layers: {sorted(_PER_LAYER)}")
        return tuple(chosen.get(str(index), {}) for index in range(length))

    def of_layer(self, override: Mapping[str, Any]) -> "Fields":
        """The fields as one layer reads them; problems and assumptions are collected here."""
        view = Fields({**self._values, **override})
        view._problems, view._assumptions = self._problems, self._assumptions
        view._read, view._broken = self._read, self._broken
        return view

    def problem(self, sentence: str) -> None:
        """Records why the configuration cannot be planned."""
        if sentence not in self._problems:
            self._problems.append(sentence)

    def conflict(self, sentence: str, *names: str) -> None:
        """Records that fields contradict each other, unless one of ``names`` is missing or wrong itself."""
        if self._broken.isdisjoint(names):
            self.problem(sentence)

    def is_broken(self, name: str) -> bool:
        """Whether the field is missing or wrong, and that was recorded."""
        return name in self._broken

    def _break(self, names: Names, sentence: str) -> None:
        self._broken.update((names,) if isinstance(names, str) else names)
        self.problem(sentence)

    def assume(self, sentence: str) -> None:
        """Records how an open question was answered."""
        if sentence not in self._assumptions:
            self._assumptions.append(sentence)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed, in the order in which it came up."""
        return tuple(self._assumptions)

    def finish(self) -> None:
        """Raises what was found wrong.

        Raises:
            ModelConfigError: something was.
        """
        if self._problems:
            raise ModelConfigError(self._problems)

    def found(self, names: Names) -> str:
        """Which of the names the configuration uses; the first if none."""
        given = (names,) if isinstance(names, str) else names
        return next((name for name in given if self._values.get(name) is not None), given[0])


def _spelled(names: Names) -> str:
    return names if isinstance(names, str) else " (or ".join((names[0], ", ".join(names[1:]))) + ")"


def _shown(value: Any) -> str:
    """As JSON writes it, cut short."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
