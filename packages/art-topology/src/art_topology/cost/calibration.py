"""The constants of the cost model: global, few, each with its reason."""

import msgspec


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Fractions of peaks that software reaches, and overheads. The defaults are used everywhere."""
