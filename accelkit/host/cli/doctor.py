"""`kit doctor`: what stands in the way of runs and builds here, each with its remedy."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from accelkit.contract import names
from accelkit.host.cli import options

if TYPE_CHECKING:
    from accelkit.host.doctor.checks import Finding

app = typer.Typer(rich_markup_mode=None)
_COLOURS = {"ok": "32", "none": "2", "warning": "33", "failed": "31"}


@app.command()
def doctor(
    as_json: bool = typer.Option(False, "--json", help="As JSON."), config_file: Path = options.CONFIG_FILE
) -> None:
    """Check engine, plug-ins, disk, limits, hardware, images, lock, proxy, certificates and clock; say what mends each.

    Exit code 1 when something fails that runs as configured need. Changes nothing.
    """
    import json

    from accelkit.contract import codec
    from accelkit.host import render
    from accelkit.host.doctor import checks, facts
    from accelkit.host.launch import environment

    found = checks.examine(facts.read(environment.current(), Path.cwd(), config_file))
    if as_json:
        render.out(json.dumps([render.masked(codec.to_dict(one)) for one in found], indent=2))
    else:
        _show(found)
    if any(one.state == "failed" for one in found):
        raise typer.Exit(names.EXIT_FAILED)


def _show(found: "list[Finding]") -> None:
    from accelkit.host import render

    wide = max(len(one.name) for one in found)
    for one in found:
        mark = render.paint(one.state.ljust(7), _COLOURS[one.state], sys.stdout)
        first, *rest = render.masked(one.text).splitlines()
        render.out(f"{mark}  {one.name.ljust(wide)}  {first}")
        for line in [*rest, *([f"-> {one.remedy}"] if one.remedy and one.state != "ok" else [])]:
            render.out(f"{' ' * (wide + 11)}{line}")
    count = {state: sum(one.state == state for one in found) for state in ("failed", "warning")}
    render.note("; ".join(f"{n} {state}" for state, n in count.items() if n) or "all is well")
