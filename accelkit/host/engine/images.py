"""Images by their names and by what the engine tells of them. Needs no SDK."""

from collections.abc import Mapping, Sequence
from typing import Any

from accelkit.contract import names
from accelkit.host.launch.plan import EngineDevices, ImagePlan


def image_tag(hardware: str) -> str:
    """The tag that `kit build HARDWARE` gives its image."""
    return f"accelkit-{hardware}:latest"


def is_bare(reference: str) -> bool:
    """Whether a reference may be the name of a hardware image: it has no folder, tag or digest."""
    return not any(mark in reference for mark in "/:@")


def tags_of(reference: str) -> tuple[str, ...]:
    """What an engine may know the image of `reference` as, best first."""
    return (image_tag(reference), reference) if is_bare(reference) else (reference,)


def plan_of(reference: str, tag: str, attributes: Mapping[str, Any]) -> ImagePlan:
    """The image from what the engine tells when it inspects `tag`."""
    labels = (attributes.get("Config") or {}).get("Labels") or {}
    return ImagePlan(
        reference=reference,
        tag=tag,
        id=str(attributes["Id"]),
        digests=tuple(attributes.get("RepoDigests") or ()),
        hardware=labels.get(names.LABEL_IMAGE, "cpu"),
        driver=labels.get(names.LABEL_DRIVER, ""),
        capabilities=labels.get(names.LABEL_CAPABILITIES, ""),
    )


def remaps_users(security_options: Sequence[str] | None) -> bool:
    """Whether the engine is rootless or remaps users, so that root inside is the caller (or nobody) outside."""
    return any("name=rootless" in o or "name=userns" in o for o in security_options or ())


def subnets_of(networks: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every subnet of these networks, from what the engine tells when it inspects them."""
    pools = [(network.get("IPAM") or {}).get("Config") or [] for network in networks]
    return tuple(part["Subnet"] for pool in pools for part in pool if part.get("Subnet"))


def devices_of(info: Mapping[str, Any]) -> EngineDevices:
    """What the engine can pass to containers, from what it tells of itself."""
    return EngineDevices(
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        cdi_folders=tuple(info.get("CDISpecDirs") or ()),
        cpus=info.get("NCPU"),
    )
