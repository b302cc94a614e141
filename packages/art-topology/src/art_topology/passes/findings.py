"""Where the passes put what they find."""

from collections.abc import Iterable, Sequence

from art_topology.diagnostics import Diagnostic, Severity


class Findings:
    """Collects diagnostics in the order in which they are found."""

    def __init__(self) -> None:
        self._found: list[Diagnostic] = []

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything found so far."""
        return tuple(self._found)

    @property
    def has_errors(self) -> bool:
        """Whether the topology is refused."""
        return any(found.severity == "error" for found in self._found)

    def error(self, code: str, path: str, message: str, hint: str, related: Iterable[str] = ()) -> None:
        """Adds a finding that refuses the topology."""
        self._add("error", code, path, message, hint, related)

    def warning(self, code: str, path: str, message: str, hint: str, related: Iterable[str] = ()) -> None:
        """Adds a finding that does not."""
        self._add("warning", code, path, message, hint, related)

    def _add(
        self, severity: Severity, code: str, path: str, message: str, hint: str, related: Iterable[str]
    ) -> None:
        self._found.append(
            Diagnostic(
                code=code, severity=severity, path=path, message=message, hint=hint, related=tuple(related)
            )
        )


def listed(values: Sequence[object], *, limit: int = 6) -> str:
    """``'a', 'b' and 'c'``, with only the first ``limit`` spelled out."""
    shown = [repr(value) for value in values[:limit]]
    if len(values) > limit:
        shown.append(f"{len(values) - limit} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
