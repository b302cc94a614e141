"""Colours can be told apart by everyone, and text on them can be read."""

from itertools import combinations, pairwise

import pytest

from art_topology.ranks import GroupFamily
from art_topology.render.palette import (
    DARK,
    FAMILIES,
    LIGHT,
    SERVICES,
    TINTS,
    contrast,
    group_colour,
    ink_on,
    light,
    mixed,
    style_sheet,
)
from art_topology.render.text import fitted, width, wrapped

Triple = tuple[float, float, float]

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISION: dict[str, tuple[Triple, Triple, Triple]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def lab(colour: str, vision: str) -> Triple:
    """CIELAB (D65) of a colour as somebody sees it."""
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    seen = [
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in VISION[vision]
    ]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * b for a, b in zip(row, seen, strict=True)) for row in to_xyz]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (v / n for v, n in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, vision: str) -> float:
    return sum((a - b) ** 2 for a, b in zip(lab(one, vision), lab(other, vision), strict=True)) ** 0.5


@pytest.mark.parametrize("vision", VISION)
def test_families_and_the_first_services_differ(vision: str) -> None:
    colours = [colour for colour, _ in FAMILIES.values()] + list(SERVICES[:2])
    for one, other in combinations(colours, 2):
        assert distance(one, other, vision) > 10, (one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbouring_groups_differ_in_lightness(family: GroupFamily) -> None:
    shades = [group_colour(family, group) for group in range(2 * len(TINTS))]
    for one, other in pairwise(shades):
        assert abs(lab(one, "normal")[0] - lab(other, "normal")[0]) > 4


def test_numbers_on_bars_can_be_read() -> None:
    for family in FAMILIES:
        for group in range(len(TINTS)):
            colour = group_colour(family, group)
            assert contrast(ink_on(colour), colour) >= 4.5, (family, group)
    for colour in SERVICES:
        assert contrast(ink_on(colour), colour) >= 4.5


def test_text_can_be_read_in_light_and_dark() -> None:
    for look in (LIGHT, DARK):
        for ink in ("ink", "soft"):
            for ground in ("page", "card", "cell", "badge"):
                assert contrast(look[ink]["fill"], look[ground]["fill"]) >= 4.5, (ink, ground)
    for index in range(len(SERVICES)):
        assert contrast(LIGHT["soft"]["fill"], light(f"service-{index}")["fill"]) >= 4.5
        assert contrast(DARK["soft"]["fill"], mixed(SERVICES[index], DARK["cell"]["fill"], 0.8)) >= 4.5


def test_every_class_has_a_dark_look() -> None:
    assert LIGHT.keys() == DARK.keys()
    sheet = style_sheet(2)
    assert sheet.startswith("@media (prefers-color-scheme: dark)")
    for name in (*DARK, "service-0", "service-1"):
        assert f".{name} {{" in sheet


def test_estimates_are_no_narrower_than_dejavu_sans() -> None:
    """Advance widths of DejaVu Sans in units of 1/2048 em, from its hmtx table."""
    advances = {
        "a": 1255,
        "b": 1300,
        "c": 1126,
        "e": 1260,
        "f": 721,
        "i": 569,
        "m": 1995,
        "r": 842,
        "s": 1067,
        "t": 803,
        "w": 1675,
        "z": 1075,
        "A": 1401,
        "C": 1430,
        "G": 1587,
        "M": 1767,
        "N": 1532,
        "Q": 1612,
        "W": 2025,
        "0": 1303,
        "9": 1303,
        " ": 651,
        ".": 651,
        "-": 739,
        "/": 690,
        ":": 690,
        "_": 1024,
        "(": 799,
        "#": 1716,
        "+": 1716,
        "!": 821,
        "&": 1597,
        "^": 1716,
        "{": 1303,
        "|": 690,
        "%": 1946,
    }
    for letter, units in advances.items():
        assert width(letter, 1) >= units / 2048 - 0.005, letter


def test_what_does_not_fit_is_cut_with_an_ellipsis() -> None:
    text = "a-name-that-is-long"
    for room in range(0, 200, 3):
        shown = fitted(text, 12, room)
        assert width(shown, 12) <= room
        assert shown in ("", text) or shown.endswith("\N{HORIZONTAL ELLIPSIS}")
        for line in wrapped("several words of which some are long " + text, 12, room):
            assert width(line, 12) <= room
    assert fitted(text, 12, 500) == text
