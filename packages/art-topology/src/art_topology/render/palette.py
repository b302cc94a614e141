"""Colours that people with any kind of colour vision tell apart (Okabe and Ito, 2008), in light and dark.

Elements have the light colours as attributes, for programs that read no style sheet, and classes by which the
style sheet turns them dark.
"""

from art_topology.ranks import GroupFamily

FAMILIES: dict[GroupFamily, tuple[str, str]] = {
    "tp": ("#0072b2", "tensor parallel"),
    "cp": ("#e69f00", "context parallel"),
    "ep": ("#009e73", "expert parallel"),
    "etp": ("#6c2e13", "expert tensor parallel"),
    "pp": ("#56b4e9", "pipeline parallel"),
    "dp": ("#59636e", "data parallel"),
}
"""The families that are drawn, in this order, with colour and name."""

SERVICES = ("#cc79a7", "#d55e00", "#b8a800", "#5b4fc4", "#3f9e9e", "#8c564b")
"""Colours of services, in turn."""

TINTS = (0.0, 0.5, 0.25, 0.7)
"""How much white the bars of groups 0, 1, 2, 3 and again have: neighbours differ."""

LIGHT: dict[str, dict[str, str]] = {
    "page": {"fill": "#ffffff"},
    "card": {"fill": "#f6f8fa", "stroke": "#c8d1da"},
    "cell": {"fill": "#ffffff", "stroke": "#b3bec9"},
    "free": {"fill": "none", "stroke": "#aab4be"},
    "ink": {"fill": "#17202a"},
    "soft": {"fill": "#55626f"},
    "badge": {"fill": "#e3e8ee", "stroke": "none"},
    "band": {"fill": "#34495e"},
    "rule": {"stroke": "#c8d1da"},
}
DARK: dict[str, dict[str, str]] = {
    "page": {"fill": "#0f141a"},
    "card": {"fill": "#19212a", "stroke": "#36424e"},
    "cell": {"fill": "#222c37", "stroke": "#465462"},
    "free": {"fill": "none", "stroke": "#566472"},
    "ink": {"fill": "#eaf0f6"},
    "soft": {"fill": "#a3b1be"},
    "badge": {"fill": "#2d3945", "stroke": "none"},
    "band": {"fill": "#a9bccf"},
    "rule": {"stroke": "#36424e"},
}


def service_colour(index: int) -> str:
    """The colour of a service by its place."""
    return SERVICES[index % len(SERVICES)]


def group_colour(family: GroupFamily, group: int) -> str:
    """The colour of a group's bar."""
    return mixed(FAMILIES[family][0], "#ffffff", TINTS[group % len(TINTS)])


def mixed(colour: str, other: str, share: float) -> str:
    """``colour`` with a share of another."""
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    return max(("#10161c", "#ffffff"), key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours (WCAG 2.1), from 1 to 21."""
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def style_sheet(services: int) -> str:
    """The rules that turn a picture dark where the viewer prefers it."""
    rules = [_rule(name, look) for name, look in DARK.items()]
    rules += [
        _rule(f"service-{index}", {"fill": mixed(service_colour(index), DARK["cell"]["fill"], 0.8)})
        for index in range(services)
    ]
    return f"@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}"


def _rule(name: str, look: dict[str, str]) -> str:
    inside = "; ".join(f"{key}: {value}" for key, value in look.items())
    return f".{name} {{ {inside} }}"


def light(name: str) -> dict[str, str]:
    """The attributes of a class in light mode."""
    if name.startswith("service-"):
        colour = service_colour(int(name.removeprefix("service-")))
        return {"fill": mixed(colour, "#ffffff", 0.8)}
    return LIGHT[name]
