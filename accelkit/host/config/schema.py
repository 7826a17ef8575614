"""The JSON schema of kit.yaml, for editors: from the model, through pydantic."""

from typing import Any

from accelkit.host.config import model
from accelkit.host.config.model import BuildConfig, Config, RunConfig


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12): unknown keys refused, every key described."""
    from pydantic import TypeAdapter

    document = TypeAdapter(Config).json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["title"] = "kit.yaml"
    parts = {"RunConfig": RunConfig, "BuildConfig": BuildConfig}
    for name, section in parts.items():
        part = document["$defs"][name]
        part["additionalProperties"] = False
        for field, described in model.options(section).values():
            part["properties"][field.name]["description"] = described.help
    document["additionalProperties"] = False
    return document
