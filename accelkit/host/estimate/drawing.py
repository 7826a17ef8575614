"""A device map as bars: in a terminal, and as a picture (SVG)."""

import re
from collections.abc import Sequence
from html import escape
from typing import Final

from accelkit.contract.placement import Place, show
from accelkit.host.estimate.figures import Share
from accelkit.host.render import on_a_line

WIDTH: Final = 32
"""Characters of a full bar."""
_NUMBERED: Final = re.compile(r"(.*\.|)(\d+)")


def bars(shares: Sequence[Share]) -> list[str]:
    """A line a device: its bar (full: held, shaded: kept free for a layer that is brought in), figures, layers."""
    names = [device_name(share.device) for share in shares]
    figures = [_figures(share) for share in shares]
    wide, far = max(map(len, names)), max(map(len, figures))
    return [
        f"{name:<{wide}}  {_bar(share, shares)}  {figure:<{far}}  {', '.join(compressed([n for n, _ in share.units]))}".rstrip()
        for share, name, figure in zip(shares, names, figures, strict=True)
    ]


def device_name(device: Place) -> str:
    """`gpu 0`, `cpu`, `disk`."""
    return f"gpu {device}" if isinstance(device, int) else device


def _figures(share: Share) -> str:
    return f"{show(share.used)} of {show(share.limit)}" if share.limit is not None else show(share.used)


def _bar(share: Share, shares: Sequence[Share]) -> str:
    """A device's bar is as long as its limit; the disk's as what it holds, beside the largest device."""
    whole = share.limit if share.limit is not None else max(1, *(_extent(other) for other in shares))
    held = _cells(share.used, whole)
    kept = min(_cells(share.kept_free, whole), WIDTH - held)
    return "█" * held + "▒" * kept + ("░" if share.limit is not None else " ") * (WIDTH - held - kept)


def _extent(share: Share) -> int:
    return share.used if share.limit is None else share.limit


def _cells(size: int, whole: int) -> int:
    """Anything but nothing shows."""
    return max(round(size / whole * WIDTH), 1) if size and whole else 0


def compressed(names: Sequence[str]) -> list[str]:
    """Layers in their order as they can be shown, those that differ by their last number alone as `layers.3 to 7`."""
    result: list[str] = []
    run: tuple[str, int, int] | None = None
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and run and (run[0], run[2] + 1) == (match[1], int(match[2])):
            run = (run[0], run[1], run[2] + 1)
            result[-1] = f"{run[0]}{run[1]} to {run[2]}"
            continue
        run = (match[1], int(match[2]), int(match[2])) if match else None
        result.append(name)
    return [on_a_line(name) for name in result]


# --- the picture -------------------------------------------------------------------------------------------------------------

_LEFT, _LENGTH, _HEIGHT, _STEP, _TOP = 80, 640, 26, 56, 64
_STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600; font-size: 15px }
  .small { font-size: 11px; fill: #59636e }
  .room { fill: none; stroke: #818b98 } .kept { fill: #818b98; opacity: .35 } .a { fill: #2f6fde } .b { fill: #6ea3f5 }
  .layer { stroke: #ffffff; stroke-width: .5 } .back { fill: #ffffff }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } .back { fill: #0d1117 } .layer { stroke: #0d1117 } }
"""


def svg(title: str, shares: Sequence[Share]) -> str:
    """A picture that stands alone: a bar a device, a block a layer with its name and size when pointed at."""
    width, height = _LEFT + _LENGTH + 20, _TOP + _STEP * len(shares)
    whole = max(1, *(_extent(share) for share in shares))
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    title = on_a_line(title)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    back = '<rect class="back" width="100%" height="100%"/>'
    name = f'<text class="title" x="12" y="30">{escape(title)}</text>'
    rows = [_row(share, whole, _TOP + _STEP * number) for number, share in enumerate(shares)]
    return "\n".join([head, f"<style>{_STYLE}</style>", back, name, *rows, "</svg>\n"])


def _row(share: Share, whole: int, top: int) -> str:
    parts = [f'<text x="12" y="{top + 18}">{escape(device_name(share.device))}</text>']
    at = 0
    for number, (name, size) in enumerate(share.units):
        parts.append(_block(f"layer {'ab'[number % 2]}", at, size, whole, top, f"{on_a_line(name)}: {show(size)}"))
        at += size
    if share.kept_free:
        told = f"{show(share.kept_free)} kept free for a layer that is brought in"
        parts.append(_block("kept", at, share.kept_free, whole, top, told))
    if share.limit is not None:
        parts.append(_block("room", 0, share.limit, whole, top, f"{show(share.limit)} in all"))
    named = ", ".join(compressed([name for name, _ in share.units])) or "nothing"
    shown = named if len(named) <= 90 else f"{named[:87]}..."
    parts.append(f'<text class="small" x="{_LEFT}" y="{top + 42}">{escape(f"{_figures(share)}: {shown}")}</text>')
    return "\n".join(parts)


def _block(kind: str, at: int, size: int, whole: int, top: int, told: str) -> str:
    left, width = _LEFT + at / whole * _LENGTH, size / whole * _LENGTH
    return (
        f'<rect class="{kind}" x="{left:.2f}" y="{top}" width="{width:.2f}" height="{_HEIGHT}">'
        f"<title>{escape(told)}</title></rect>"
    )
