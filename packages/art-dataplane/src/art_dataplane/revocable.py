"""Mappings whose values are taken back: what always holds is that no access after that gives one."""

from collections.abc import Callable, Iterator, Mapping


class Revocable[T](Mapping[str, T]):
    """Values by name until :meth:`revoke`; every later access raises.

    Args:
        values: by name; the caller keeps no reference.
        revoked: makes the error that later accesses raise.
    """

    def __init__(self, values: dict[str, T], revoked: Callable[[], Exception]) -> None:
        self._values: dict[str, T] | None = values
        self._revoked = revoked

    def opened(self) -> dict[str, T]:
        """The values.

        Raises:
            Exception: they were revoked.
        """
        if self._values is None:
            raise self._revoked()
        return self._values

    def revoke(self) -> None:
        """Forgets the values; a second call does nothing."""
        self._values = None

    def __getitem__(self, name: str) -> T:
        """Returns one value."""
        return self.opened()[name]

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names."""
        return iter(self.opened())

    def __len__(self) -> int:
        """The number of values."""
        return len(self.opened())
