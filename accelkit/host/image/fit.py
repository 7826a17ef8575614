"""Whether a machine has the hardware that an image is for, by the image's own rules."""

import glob

from accelkit.host.hardware import Hardware
from accelkit.host.image.catalogue import Build, DeviceRules, ImageSpec
from accelkit.host.image.variants import runs_on


def of_image(spec: ImageSpec, build: Build, machine: Hardware) -> str:
    """`yes`, or why not."""
    if not present(spec.devices):
        return f"not found: {spec.devices.missing}" if spec.devices.missing else "not found"
    drivers = {gpu.driver for gpu in machine.gpus}
    why = runs_on(build, min(drivers, default=None), tuple(g.capability for g in machine.gpus if g.capability))
    return f"no: {why}" if why else "yes"


def present(rules: DeviceRules) -> bool:
    """Whether one of the files that tell a hardware is there."""
    return not rules.present or any(glob.glob(pattern) for pattern in rules.present)
