"""What this machine has, found without torch."""

from accelkit.host.hardware.probe import GpuInfo, Hardware, probe

__all__ = ["GpuInfo", "Hardware", "probe"]
