"""Sizes of parts of a model, and choices by size."""

import pytest
import torch
from torch import nn

from accelkit.utils import (
    check_device_same,
    compute_module_sizes,
    fallback_allocate,
    find_tied_parameters,
    get_module_size_with_ties,
    is_peft_model,
)


def tree() -> nn.ModuleDict:
    """a: 440 bytes; b: 80 + 24; c: 8."""
    return nn.ModuleDict(
        {"a": nn.Linear(10, 10), "b": nn.Sequential(nn.Linear(4, 4), nn.Linear(2, 2)), "c": nn.Linear(1, 1)}
    )


@pytest.mark.parametrize(
    ("limit", "chosen", "rest"),
    [
        (1000, "a", ["b", "c"]),
        ("0.5KB", "a", ["b", "c"]),
        (104, "b", ["a", "c"]),
        (103, "b.0", ["a", "b.1", "c"]),
        (30, "b.1", ["a", "b.0", "c"]),
        (8, "c", ["a", "b.0", "b.1"]),
        (7, None, ["a", "b", "c"]),
        (0, None, ["a", "b", "c"]),
    ],
)
def test_the_first_part_that_fits(limit: int | str, chosen: str | None, rest: list[str]) -> None:
    """Whole modules before their parts; nothing is lost."""
    model = tree()
    name, module, remaining = fallback_allocate(list(model.named_children()), compute_module_sizes(model), limit)
    assert (name, [pair[0] for pair in remaining]) == (chosen, rest)
    assert module is (None if chosen is None else model.get_submodule(chosen))


def test_what_stays_whole_and_what_is_tied() -> None:
    """A class that is not split is not looked into; a tied module must fit with the other, less what they share."""
    model = tree()
    pairs = list(model.named_children())
    assert fallback_allocate(pairs, compute_module_sizes(model), 30, ["Sequential"])[0] == "c"
    assert fallback_allocate(pairs, compute_module_sizes(model), 30, "Sequential")[0] == "c"
    model["c"] = nn.Linear(10, 10)
    model["c"].weight = model["a"].weight
    sizes, ties = compute_module_sizes(model), find_tied_parameters(model)
    assert sizes[""] == 440 + 104 + 40

    assert fallback_allocate(list(model.named_children()), sizes, 480, None, ties)[0] == "a"
    assert fallback_allocate(list(model.named_children()), sizes, 479, None, ties)[0] == "b"


def test_a_module_with_those_it_shares_with() -> None:
    """Shared bytes count once, also when two parameters lie in one module; names that are placed already count nothing."""
    model = tree()
    model["c"] = nn.Linear(10, 10)
    model["c"].weight, model["c"].bias = model["a"].weight, model["a"].bias
    sizes = compute_module_sizes(model)
    rest = [("b", model["b"]), ("c", model["c"])]

    assert get_module_size_with_ties(["c.weight", "c.bias"], sizes["a"], sizes, rest) == (440, ["c"], [model["c"]])
    assert get_module_size_with_ties(["c.weight"], sizes["a"], sizes, rest) == (480, ["c"], [model["c"]])
    assert get_module_size_with_ties(["c.weight"], sizes["a"], sizes, rest[:1]) == (440, [], [])
    assert get_module_size_with_ties([], 7, sizes, rest) == (7, [], [])


def test_one_device_by_two_names() -> None:
    """A device without an index is the present one of its kind."""
    assert check_device_same(torch.device("cuda"), torch.device("cuda", 0))
    assert check_device_same("cpu", torch.device("cpu"))
    assert not check_device_same("cuda:1", "cuda")
    assert not check_device_same("cpu", "meta")


def test_a_model_of_no_adapter_library() -> None:
    """The answer needs no import of the library."""
    assert not is_peft_model(tree())
