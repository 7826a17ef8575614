"""`kit env`: what to paste into a bug report. Reads versions from package metadata; imports none of the packages."""

import platform
import sys

import typer

from accelkit import __version__

app = typer.Typer(rich_markup_mode=None)

PACKAGES = ("torch", "safetensors", "numpy", "typer", "pydantic", "docker", "pyyaml")


@app.command()
def env(json_: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Print what to paste into a bug report: versions, hardware, engine, config files."""
    import json

    from accelkit.host import render

    facts = collect()
    if json_:
        render.out(json.dumps(facts, indent=2))
        return
    for section, values in facts.items():
        render.out(f"{section}:")
        for name, value in values.items():
            render.out(f"  {name}: {value}")


def collect() -> dict[str, dict[str, object]]:
    """Section -> name -> value, JSON-ready."""
    return {"versions": _versions(), "machine": _machine(), "engine": _engine(), "config": _config()}


def _versions() -> dict[str, object]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, object] = {"accelkit": __version__, "python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _machine() -> dict[str, object]:
    from accelkit.contract import codec
    from accelkit.host import hardware

    return {"platform": platform.platform(), **codec.to_dict(hardware.probe())}


def _engine() -> dict[str, object]:
    import accelkit.host.engine.client as engine
    from accelkit.host import process
    from accelkit.host.errors import EngineError, KitError

    found: dict[str, object] = {}
    try:
        found["engine"] = engine.connect().version()["Version"]
    except EngineError as error:
        found["engine"] = f"none: {error.message}"
    for plugin in ("compose", "buildx"):
        try:
            done = process.run(["docker", plugin, "version"], timeout=10)
            found[plugin] = done.stdout.strip() if done.code == 0 else "not there"
        except KitError:
            found[plugin] = "not there"
    return found


def _config() -> dict[str, object]:
    from pathlib import Path

    from accelkit.host import paths

    project = Path.cwd() / "kit.yaml"
    return {
        "project": str(project) if project.is_file() else "no kit.yaml here",
        "user": str(paths.user_config()) if paths.user_config().is_file() else "none",
    }
