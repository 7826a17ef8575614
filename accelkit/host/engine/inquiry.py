"""What a run must know of the engine, asked through the docker command: its answers are there before the SDK is imported.

The command also knows the way to the engine best (contexts, ssh, TLS). Where it does not answer as expected, the SDK is asked instead
(`request.engine_facts`), which tells what is wrong.
"""

import json
from contextlib import suppress
from typing import Any, Final

from accelkit.host import process
from accelkit.host.engine import images
from accelkit.host.errors import KitError
from accelkit.host.launch.plan import ImagePlan

PATIENCE: Final = 10.0
"""Seconds for all answers."""

ABOUT_ENGINE: Final = ("info", "--format", "{{json .}}")
"""The slowest question: the docker command asks every plug-in who it is."""

_guessed: list[process.Child] = []
"""That question, asked before anybody could read the command line."""


def guess() -> None:
    """Ask already what a run in containers will want to know of the engine. `forget` ends it where nobody did."""
    with suppress(KitError):
        _guessed.append(_child(*ABOUT_ENGINE))


def forget() -> None:
    """End what was guessed and not wanted."""
    while _guessed:
        child = _guessed.pop()
        child.kill_group()
        child.wait()


def _child(*words: str) -> process.Child:
    return process.Child(["docker", *words], stderr=process.NOWHERE)


class Inquiry:
    """Questions about an image and the engine, on their way. Close it whatever happens."""

    def __init__(self, reference: str, *, networks: bool) -> None:
        """Ask; the answers are waited for by the methods. `networks`: whether the subnets in use will be wanted."""
        self.reference = reference
        self._asked: dict[str, process.Child] = {}
        with suppress(KitError):  # no docker command
            self._asked["engine"] = _guessed.pop() if _guessed else _child(*ABOUT_ENGINE)
            for tag in images.tags_of(reference):
                self._ask(tag, "image", "inspect", tag)
            if networks:
                self._ask("networks", "network", "ls", "--quiet")

    def image(self) -> ImagePlan | None:
        """The image, or None where the command found none."""
        for tag in images.tags_of(self.reference):
            found = self._answer(tag)
            if isinstance(found, list) and found:
                return images.plan_of(self.reference, tag, found[0])
        return None

    def engine(self) -> dict[str, Any] | None:
        """What the engine tells of itself; None where the command did not tell."""
        found = self._answer("engine")
        return found if isinstance(found, dict) and "SecurityOptions" in found else None

    def subnets(self) -> tuple[str, ...] | None:
        """Every subnet of every network of the engine; None where the command did not tell."""
        listed = self._output("networks")
        if listed is None:
            return None
        self._ask("inspected", "network", "inspect", *listed.decode().split())
        found = self._answer("inspected")
        return images.subnets_of(found) if isinstance(found, list) else None

    def close(self) -> None:
        """Forget the questions that were not answered."""
        for child in self._asked.values():
            child.kill_group()
            child.wait()
        self._asked.clear()

    def _ask(self, name: str, *words: str) -> None:
        self._asked[name] = _child(*words)

    def _output(self, name: str) -> bytes | None:
        child = self._asked.pop(name, None)
        return None if child is None else child.output(PATIENCE)

    def _answer(self, name: str) -> Any:
        output = self._output(name)
        try:
            return None if output is None else json.loads(output)
        except ValueError:
            return None
