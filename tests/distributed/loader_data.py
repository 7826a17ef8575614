"""Data sets that tell what was read of them, and small helpers, for the checks of loaders on several ranks."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from accelkit import Accelerator, DataLoaderConfiguration
from tests.support.loaders import Numbers

__all__ = ["Numbers", "Seekable", "Stream", "lists", "prepare", "refused"]


class Stream(IterableDataset[Any]):
    """The items given, one after the other; those that can be called are called."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.read = items, 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            self.read += 1
            yield item() if callable(item) else item


class Seekable(Stream):
    """A stream that can be entered anywhere."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.at = self.begin = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.begin = self.begin, 0
        while self.at < len(self.items):
            self.at += 1
            self.read += 1
            yield self.items[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin there, once."""
        self.begin = state["at"]


def prepare(acc: Accelerator, loader: Any, **config: Any) -> Any:
    """A loader prepared with these settings."""
    acc.dataloader_config = DataLoaderConfiguration(**config)
    made = acc.prepare_data_loader(loader)
    acc.dataloader_config = DataLoaderConfiguration()
    acc._dataloaders.clear()
    return made


def lists(batches: Any) -> list[Any]:
    """Batches as lists."""
    return [batch.tolist() for batch in batches]


def refused(kind: type[Exception], call: Callable[[], Any]) -> str:
    """The message of the error that a call must raise."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")
