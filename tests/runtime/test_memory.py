"""Letting go of memory, and the batch size that fits."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accelkit import Accelerator, AcceleratorState, SettingError, find_executable_batch_size
from accelkit.utils import clear_device_cache, release_memory, should_reduce_batch_size

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No state of another test."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(OUT_OF_MEMORY), True),
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (MemoryError("Unable to allocate 3 GiB"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError(OUT_OF_MEMORY), False),
        (RuntimeError(), False),
    ],
)
def test_which_errors_are_about_memory(error: Exception, expected: bool) -> None:
    """Those of devices and hosts that a smaller batch may cure, and no others."""
    assert should_reduce_batch_size(error) is expected


def test_the_allocator_of_the_cpu_is_recognised() -> None:
    """What torch itself says when the host cannot give so much."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.uint8)

    assert should_reduce_batch_size(caught.value)


@pytest.mark.parametrize(("start", "limit"), [(1, 1), (2, 1), (3, 9), (12, 5), (23, 8)])
def test_sizes_shrink_until_one_fits(start: int, limit: int) -> None:
    """Every size is nine tenths of the one before, rounded down; the one that fitted is tried first the next time."""
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=start)
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > limit:
            raise RuntimeError(OUT_OF_MEMORY)
        return batch_size

    found = train()
    assert tried == [size for size in _sizes(start) if size >= found]
    assert found <= limit
    assert train() == found
    assert tried[-2:] == [found, found]


def _sizes(start: int) -> list[int]:
    sizes = [start]
    while sizes[-1]:
        sizes.append(int(sizes[-1] * 0.9))
    return sizes


@pytest.mark.parametrize("with_parentheses", [False, True])
def test_a_function_that_reduces(with_parentheses: bool) -> None:
    """It is asked without arguments or with the size, in both forms of the decorator; one that does not reduce is refused."""
    halves = iter([8, 4, 2])
    for reduce_fn, expected in (
        (lambda: next(halves), [16, 8, 4]),
        (lambda size: size // 2, [16, 8, 4]),
        (lambda size: size - 7, [16, 9, 2]),
    ):
        tried: list[int] = []

        def train(batch_size: int, tried: list[int] = tried) -> None:
            tried.append(batch_size)
            if batch_size > 5:
                raise torch.OutOfMemoryError(OUT_OF_MEMORY)

        settings: dict[str, Any] = {"starting_batch_size": 16, "reduce_batch_size_fn": reduce_fn}
        run = find_executable_batch_size(**settings)(train) if with_parentheses else None
        (run or find_executable_batch_size(train, **settings))()
        assert tried == expected
    stuck = find_executable_batch_size(_never, 4, lambda size: size)
    with pytest.raises(SettingError, match="4 comes after 4, which was too big already"):
        stuck()


def _never(batch_size: int) -> None:
    raise RuntimeError(f"{OUT_OF_MEMORY} for {batch_size}")


def test_nothing_fits() -> None:
    """The end is an error that quotes the last one; no exception is kept alive, so no tensor of it either."""
    with pytest.raises(RuntimeError, match=r"(?s)No executable batch size found, reached zero\..*for 1$") as caught:
        find_executable_batch_size(_never, 3)()

    assert caught.value.__context__ is None
    with pytest.raises(SettingError, match="starting_batch_size=0"):
        find_executable_batch_size(_never, 0)


def test_a_call_after_one_that_failed_begins_anew() -> None:
    """That nothing fitted says nothing of the next call, which may need less."""

    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int, needs: int) -> int:
        if batch_size > needs:
            raise MemoryError
        return batch_size

    with pytest.raises(RuntimeError, match="No executable batch size"):
        train(0)
    assert train(8) == 4


def test_memory_of_a_failed_try_is_free_before_the_next() -> None:
    """What a try held is gone when the next one begins, also when it was in a cycle."""
    held: list[weakref.ref[Any]] = []

    @find_executable_batch_size(starting_batch_size=10)
    def train(batch_size: int) -> None:
        assert all(reference() is None for reference in held)
        model = nn.Linear(2, 2)
        model.itself = model
        held.append(weakref.ref(model))
        if batch_size > 7:
            raise RuntimeError(OUT_OF_MEMORY)

    train()
    assert len(held) == 4


def test_other_errors_pass() -> None:
    """An error that a smaller batch does not cure is the caller's, at once."""
    tried: list[int] = []

    @find_executable_batch_size
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        train()
    assert tried == [128]


def test_the_right_call_is_shown() -> None:
    """A caller who passes the batch size too, by place or by name, reads what to type instead; other mistakes stay what they are."""

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int, arg1: str, arg2: str = "") -> tuple[int, str, str]:
        return batch_size, arg1, arg2

    assert train("hello") == (2, "hello", "")
    assert train("hello", arg2="world") == (2, "hello", "world")
    for call in (lambda: train(128, "hello", "world"), lambda: train("hello", arg2="world", batch_size=3)):
        with pytest.raises(
            TypeError, match=r"(?s)passed into `train` as the first.*`train\(arg1='hello', arg2='world'\)`"
        ):
            call()
    with pytest.raises(TypeError, match="train: missing a required argument: 'arg1'"):
        train()
    assert find_executable_batch_size(lambda batch_size, *rest: (batch_size, rest), 5)(1, 2) == (5, (1, 2))


def test_release_memory() -> None:
    """A None per object; the objects are gone once their names are assigned, cycles included."""
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    a.other, b.other = b, a
    seen = weakref.ref(a), weakref.ref(b)
    a, b = release_memory(a, b)
    clear_device_cache(garbage_collection=True)

    assert (a, b) == (None, None)
    assert [reference() for reference in seen] == [None, None]
    assert release_memory() == []


def test_free_memory_lets_go_of_what_was_prepared() -> None:
    """After it nothing here holds the model, the optimizer or the loader; counting begins again."""
    acc = Accelerator(gradient_accumulation_steps=2)
    model = nn.Linear(2, 2)
    model, optimizer, loader = acc.prepare(
        model, torch.optim.AdamW(model.parameters()), DataLoader(torch.ones(4, 2), batch_size=1)
    )
    for x in loader:
        with acc.accumulate(model):
            acc.backward(model(x).sum())
            optimizer.step()
            break
    seen = [weakref.ref(item) for item in (model, optimizer, loader, loader.dataset)]
    assert acc.step == 1
    del x
    model, optimizer, loader = acc.free_memory(model, optimizer, loader)
    clear_device_cache(garbage_collection=True)

    assert acc.step == 0
    assert [reference() for reference in seen] == [None] * 4
    assert acc.clear() == []
