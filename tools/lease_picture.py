"""Draws ``docs/images/leases.svg``: what becomes of groups and of segments under leases.

python tools/lease_picture.py
"""

from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "leases.svg"

WIDTH, HEIGHT = 1000, 880
BOX_WIDTH, BOX_HEIGHT = 150, 58
STYLE = (
    "@media (prefers-color-scheme: dark) { .page { fill: #0f141a } .card { fill: #19212a; stroke: #36424e } "
    ".box { fill: #222c37; stroke: #566472 } .ink { fill: #eaf0f6 } .soft { fill: #a3b1be } "
    ".line { stroke: #a3b1be } .head { fill: #a3b1be } .held { fill: #17395c; stroke: #5b9bd5 } "
    ".done { fill: #173d2a; stroke: #4fae7b } .gone { fill: #46242a; stroke: #d9777f } "
    ".no { stroke: #d9777f } .no-head { fill: #d9777f } }"
)
COLOURS = {
    "box": ("#ffffff", "#b3bec9"),
    "held": ("#e3effb", "#2f78bd"),
    "done": ("#e2f4ea", "#2e8b57"),
    "gone": ("#fbe6e8", "#b8404a"),
}


def box(x: int, y: int, name: str, note: str, kind: str = "box") -> str:
    """A state, its centre at ``x`` and ``y``."""
    fill, stroke = COLOURS[kind]
    left, top = x - BOX_WIDTH // 2, y - BOX_HEIGHT // 2
    return (
        f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" class="{kind}" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>'
        + text(x, y - 3, name, size=15, weight=600)
        + text(x, y + 16, note, size=11, soft=True)
    )


def text(
    x: int,
    y: int,
    words: str,
    *,
    size: int = 12,
    weight: int = 400,
    soft: bool = False,
    anchor: str = "middle",
) -> str:
    """A line of text on a baseline."""
    kind, fill = ("soft", "#55626f") if soft else ("ink", "#17202a")
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'class="{kind}" fill="{fill}">{words}</text>'
    )


def arrow(path: str, *labels: tuple[int, int, str], refused: bool = False, dashed: bool = False) -> str:
    """A way from one state to another, with what takes it."""
    colour, line, head = ("#b8404a", "no", "no-head") if refused else ("#55626f", "line", "head")
    dashes = ' stroke-dasharray="6 4"' if refused or dashed else ""
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6" class="{line}"{dashes} '
        f'marker-end="url(#{head})"/>' + "".join(text(x, y, words) for x, y, words in labels)
    )


def card(y: int, height: int, title: str, note: str) -> str:
    """The ground of one machine."""
    return (
        f'<rect x="20" y="{y}" width="{WIDTH - 40}" height="{height}" rx="10" class="card" fill="#f6f8fa" '
        'stroke="#c8d1da"/>'
        + text(40, y + 30, title, size=17, weight=600, anchor="start")
        + text(40, y + 50, note, size=12, soft=True, anchor="start")
    )


def marker(name: str, colour: str) -> str:
    """The head of an arrow."""
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><path d="M0 1 L9 5 L0 9 z" class="{name}" fill="{colour}"/></marker>'
    )


def groups() -> list[str]:
    """The states of a group in the queue."""
    a, b, c, top, low, late = 150, 540, 880, 150, 320, 440
    return [
        card(
            20, 460, "A group in the queue", "TrajectoryQueue; owners of its records refuse old fences, too"
        ),
        arrow(f"M40 {top} H{a - 75}", (56, top - 8, "put")),
        arrow(
            f"M{a + 75} {top - 14} H{b - 75}",
            ((a + b) // 2, top - 38, "select: until a deadline,"),
            ((a + b) // 2, top - 22, "under a fence above all before it"),
        ),
        arrow(
            f"M{b - 75} {top + 14} H{a + 75}",
            ((a + b) // 2, top + 32, "expired · holder dead"),
            ((a + b) // 2, top + 48, "or released as discarded"),
        ),
        arrow(f"M{b + 75} {top} H{c - 75}", ((b + c) // 2, top - 10, "released as consumed")),
        arrow(f"M{a} {top + 29} V{low - 29}", (a - 62, (top + low) // 2 + 4, "an owner died")),
        arrow(
            f"M{b - 30} {top + 29} C{b - 40} {low - 70} {a + 130} {low - 90} {a + 62} {low - 29}",
            (b - 50, low - 66, "an owner died, and the lease ended"),
            dashed=True,
        ),
        arrow(
            f"M{a + 75} {low - 10} H{b - 75}", ((a + b) // 2, low - 18, "select: alone, with what is gone")
        ),
        arrow(
            f"M{b - 75} {low + 12} H{a + 75}", ((a + b) // 2, low + 29, "expired · holder dead · discarded")
        ),
        arrow(f"M{b + 75} {low} H{c - 75}", ((b + c) // 2, low - 10, "released as consumed")),
        box(a, top, "waiting", "at its old place"),
        box(b, top, "leased", "one holder, fence n", "held"),
        box(c, top, "consumed", "trained on, once", "done"),
        box(a, low, "lost, waiting", "never trained on"),
        box(b, low, "lost, leased", "to be reported", "held"),
        box(c, low, "lost", "with owner and reason", "gone"),
        box(a, late, "old holder", "its lease has ended"),
        arrow(
            f"M{a + 75} {late} H{c - 75}",
            ((a + c) // 2, late - 9, "release · renew · fetch · drop with the old lease"),
            refused=True,
        ),
        box(c, late, "refused", "LeaseError; throw it away", "gone"),
    ]


def segments() -> list[str]:
    """The states of a segment in the store of its owner."""
    a, b, c, d, top, low = 130, 370, 620, 870, 620, 800
    return [
        card(
            500, 360, "A segment of shared memory", "ShmSegmentStore; its bytes count from the reservation on"
        ),
        box(a, top, "reserved", "pages there, written"),
        box(b, top, "committed", "never changes again"),
        box(c, top, "leased", "to who maps it", "held"),
        box(d, top, "spare", "pages for the next", "done"),
        box(b + 120, low, "removed", "who mapped it keeps it", "gone"),
        box(d, low, "swept", "by the next start", "gone"),
        arrow(f"M{a + 75} {top} H{b - 75}", ((a + b) // 2, top - 10, "commit")),
        arrow(f"M{b + 75} {top - 14} H{c - 75}", ((b + c) // 2, top - 22, "grant")),
        arrow(f"M{c - 75} {top + 14} H{b + 75}", ((b + c) // 2, top + 31, "discarded")),
        arrow(f"M{c + 75} {top} H{d - 75}", ((c + d) // 2, top - 10, "consumed")),
        arrow(
            f"M{d} {top - 29} C{d} {top - 72} {a} {top - 72} {a} {top - 29}",
            ((a + d) // 2 + 160, top - 66, "reserve: same pages, new name"),
        ),
        arrow(
            f"M{a} {top + 29} C{a} {low} {b - 60} {low} {b + 45} {low}", (a - 46, low - 90, "abort · close")
        ),
        arrow(
            f"M{b} {top + 29} C{b} {low - 70} {b + 60} {low - 70} {b + 95} {low - 29}",
            (b - 34, low - 100, "drop"),
        ),
        arrow(
            f"M{c} {top + 29} C{c} {low - 70} {b + 190} {low - 70} {b + 145} {low - 29}",
            (c + 14, low - 50, "the deadline passed"),
        ),
        arrow(
            f"M{d} {top + 29} V{low - 29}",
            (d - 74, low - 98, "from any state:"),
            (d - 74, low - 82, "the owner was killed"),
            refused=True,
        ),
        text(
            40,
            low + 46,
            "A release with a lease that has ended is refused, as above.",
            soft=True,
            anchor="start",
        ),
    ]


DESCRIPTION = (
    "A group waits, is leased, and is consumed when its lease is released so; a lease that expires, is "
    "discarded or whose holder died gives it back. A group whose owner died is handed out once more as lost. "
    "An old holder is refused. A segment is reserved, committed, leased, and becomes spare or is removed; "
    "those of a killed owner are swept."
)
FONTS = "Inter, 'Segoe UI', Roboto, Helvetica, Arial, 'DejaVu Sans', sans-serif"


def picture() -> str:
    """The whole picture."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title description" '
        f'font-family="{FONTS}">',
        '<title id="title">Leases on groups and on segments</title>',
        f'<desc id="description">{DESCRIPTION}</desc>',
        f"<style>{STYLE}</style>",
        f"<defs>{marker('head', '#55626f')}{marker('no-head', '#b8404a')}</defs>",
        '<rect x="0" y="0" width="100%" height="100%" class="page" fill="#ffffff"/>',
        *groups(),
        *segments(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
