"""Trackers: where the numbers of a training loop are shown. A new one is a file here, and a line in the registry."""

from accelkit.runtime.tracking.base import BlankTracker, GeneralTracker, on_main_process
from accelkit.runtime.tracking.registry import (
    LoggerType,
    filter_trackers,
    get_available_trackers,
    register_tracker_class,
    tracker_class,
)

__all__ = [
    "BlankTracker",
    "GeneralTracker",
    "LoggerType",
    "filter_trackers",
    "get_available_trackers",
    "on_main_process",
    "register_tracker_class",
    "tracker_class",
]
