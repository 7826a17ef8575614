"""`kit images`: what can be built, and what fits this machine."""

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from accelkit.host.hardware import Hardware

app = typer.Typer(rich_markup_mode=None)


@app.command()
def images(
    name: str = typer.Argument(None, metavar="[IMAGE]", help="Every variant of one image."),
    as_json: bool = typer.Option(False, "--json", help="As JSON."),
) -> None:
    """List the images, the torch in each, and whether this machine has the hardware for it."""
    from accelkit.host import hardware, render
    from accelkit.host.image import catalogue

    machine = hardware.probe()
    rows = _variants(name, machine) if name else [_row(n, machine) for n in catalogue.names()]
    if as_json:
        render.out(json.dumps(rows, indent=2))
        return
    shown = [k for k in rows[0] if not k.startswith("_")]
    render.out(render.table([k.upper() for k in shown], [[row[k] for k in shown] for row in rows]))


def _row(name: str, machine: "Hardware") -> dict[str, Any]:
    from accelkit.host.errors import KitError
    from accelkit.host.image import catalogue, fit, variants

    try:
        spec, known = catalogue.load(name), catalogue.compatibility(name)
        default = variants.choose(spec, known, variants.Wanted())
    except KitError as error:
        return {"name": name, "torch": "", "python": "", "summary": "damaged", "here": error.message}
    return {
        "name": name,
        "torch": f"{default.torch} ({', '.join(known.torch[default.torch].builds)})",
        "python": ", ".join(known.torch[default.torch].python),
        "summary": spec.summary,
        "here": fit.of_image(spec, default.build, machine),
    }


def _variants(name: str, machine: "Hardware") -> list[dict[str, Any]]:
    from accelkit.host.image import catalogue, fit

    spec, known = catalogue.load(name), catalogue.compatibility(name)
    return [
        {
            "torch": torch,
            "variant": build,
            "accelerator": known.builds[build].accelerator,
            "driver": known.builds[build].driver or "",
            "python": ", ".join(version.python),
            "here": fit.of_image(spec, known.builds[build], machine),
        }
        for torch, version in known.torch.items()
        for build in version.builds
    ]
