"""What must hold of state and collectives in a world of several ranks; world_checks.py runs these first."""

import collections
import dataclasses
import itertools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from accelkit import Accelerator, DistributedOperationException
from accelkit.runtime.collectives import frames, neighbours, shared
from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.collectives.torch_dist import TorchCollectives
from accelkit.runtime.errors import SettingError, UnsupportedError

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip
MORE_DTYPES = [
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip
"""Those with which torch does not calculate, or hardly."""


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    """A dataclass."""

    x: Any
    label: Any = None


def expect(raised: type[BaseException], action: Any) -> str:
    """The message of the error that an action must raise."""
    try:
        action()
    except raised as error:
        return str(error)
    raise AssertionError(f"{raised.__name__} was not raised")


def check_state(acc: Accelerator) -> None:
    """The properties tell rank, world and device."""
    assert acc.use_distributed
    assert str(acc.distributed_type.value) == "MULTI_CPU"
    assert acc.strategy == "ddp"
    assert acc.is_main_process == (acc.process_index == 0)
    assert acc.is_last_process == (acc.process_index == acc.num_processes - 1)
    assert acc.device == torch.device("cpu")


def check_gather_every_dtype_and_shape(acc: Accelerator) -> None:
    """Each type, with no dimension, none of some, or some, comes back joined, in its type, in the order of ranks."""
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (2, 0), (2, 3), (1000, 7)]
    for dtype, shape in itertools.product(DTYPES + MORE_DTYPES, shapes):
        mine = torch.full(shape, acc.process_index + 1).to(dtype)
        whole = acc.gather(mine)
        parts = [
            torch.full(shape or (1,), rank + 1).to(dtype).to(torch.complex128) for rank in range(acc.num_processes)
        ]
        assert whole.dtype == dtype
        assert torch.equal(whole.to(torch.complex128), torch.cat(parts)), (dtype, shape)


def as_on_several_machines(acc: Accelerator) -> NestedCollectives:
    """The operations as they are where ranks do not share a machine."""
    original = neighbours._machine
    neighbours._machine = lambda: f"machine {acc.process_index}"
    far = NestedCollectives(TorchCollectives(), torch.device("cpu"))
    far.barrier()
    neighbours._machine = original
    return far


def check_gather_of_every_size(acc: Accelerator) -> None:
    """Whatever way data takes (in the frame, through shared memory, in pieces, by the carrier), each byte arrives, again and again."""
    frame, piece = frames.SIZE, shared.MOST
    sizes = [1, 15, frame - 200, frame, frame + 1, 1 << 16, (1 << 20) + 1, piece, piece + 5]
    for operations in (acc.operations, as_on_several_machines(acc)):
        for turn, size in enumerate([*sizes, 7, *reversed(sizes[:7])]):
            mine = torch.arange(size, dtype=torch.int32).add_(acc.process_index * 3 + turn).to(torch.uint8)
            whole = operations.gather([mine, mine[:3]])
            single = operations.gather(mine)
            assert torch.equal(single, whole[0]), size
            for rank, part in enumerate(single.split(size)):
                assert torch.equal(part, mine + 3 * (rank - acc.process_index)), (size, rank)


def check_the_other_operations_between_machines(acc: Accelerator) -> None:
    """Where ranks share no memory, small and large data is reduced, sent round and compared all the same."""
    far, me, size = as_on_several_machines(acc), acc.process_index, acc.num_processes
    for length in (3, 3000):
        mine = torch.full((length,), float(me))
        assert far.reduce([mine], "max")[0].unique().tolist() == [size - 1]
        assert far.reduce(mine, "sum").unique().tolist() == [sum(range(size))]
        assert far.broadcast(mine.clone(), source=1).unique().tolist() == [1.0]
        assert far.gather_object([length] * me * length) == [length] * (length * sum(range(size)))
        assert far.broadcast_object_list([str(me) * length], source=1) == ["1" * length]
        assert far.gather_mixed({"t": [str(me)] * length, "x": mine}, lists=False)["t"][-1] == str(size - 1)
    text = expect(DistributedOperationException, lambda: far.gather(torch.ones(3000 + me)))
    assert f"rank {size - 1}: gather: [{2999 + size}] float32" in text


def check_results_do_not_change_later(acc: Accelerator) -> None:
    """What an operation returned is the caller's: later operations, which use the same memory again, do not touch it."""
    me, size = acc.process_index, acc.num_processes
    for length in (10, 5000, 100_000):
        kept = [acc.gather(torch.full((length,), float(me + turn))) for turn in range(5)]
        kept += [acc.broadcast(torch.full((length,), float(me + turn)), from_process=1) for turn in range(5)]
        for turn in range(5):
            assert kept[turn].view(size, length)[:, -1].tolist() == [float(rank + turn) for rank in range(size)]
            assert kept[5 + turn].unique().tolist() == [1.0 + turn]


def structures(value: torch.Tensor) -> list[Any]:
    """Structures of many kinds around a tensor."""
    return [
        [value, (value, {"a": value})],
        Pair(value, [value]),
        Record(value, value),
        collections.OrderedDict(b=value, a=value.bool()),
        collections.defaultdict(list, x=value),
        collections.deque([value], maxlen=2),
        {},
        [],
    ]


def check_gather_structures(acc: Accelerator) -> None:
    """Structures come back as themselves, each tensor joined; transposed and strided tensors too."""
    mine = torch.arange(6.0).reshape(2, 3).t() + acc.process_index
    whole = torch.cat([torch.arange(6.0).reshape(2, 3).t() + rank for rank in range(acc.num_processes)])
    for given, wanted in zip(structures(mine), structures(whole), strict=True):
        gathered = acc.gather(given)
        assert type(gathered) is type(given)
        assert str(gathered) == str(wanted)
    leaf = torch.ones(2, requires_grad=True)
    assert not acc.gather(leaf).requires_grad
    assert torch.equal(
        acc.gather([mine[::2], mine[:, 1]])[0],
        torch.cat(list(whole.split(3)))[::1].reshape(-1, 3, 2)[:, ::2].reshape(-1, 2),
    )


def count_exchanges(action: Any) -> int:
    """How often an action exchanges something: by a function of torch.distributed, or over our own connections."""
    names = [
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_single",
        "all_reduce",
        "broadcast",
        "barrier",
        "gather",
    ]
    names += ["scatter", "all_gather_object", "broadcast_object_list", "gather_object", "send", "recv", "reduce"]
    originals = {(dist, name): getattr(dist, name) for name in names if hasattr(dist, name)}
    originals[neighbours.Neighbours, "exchange"] = neighbours.Neighbours.exchange
    counted: list[str] = []

    def counting(original: Any) -> Any:
        return lambda *args, **kwargs: (counted.append(original), original(*args, **kwargs))[1]

    try:
        for (home, name), original in originals.items():
            setattr(home, name, counting(original))
        action()
    finally:
        for (home, name), original in originals.items():
            setattr(home, name, original)
    return len(counted)


def check_one_exchange_per_operation(acc: Accelerator) -> None:
    """Whatever the structure, an operation is one exchange; two for what is reduced and large, or large and between machines."""
    me = acc.process_index
    few, many, large = [torch.ones(3)] * 20, [torch.ones(1)] * 300, [torch.ones(2000)] * 20
    for operations, more in ((acc.operations, 1), (as_on_several_machines(acc), 2)):
        expected: list[tuple[int, Any]] = [
            (1, lambda it: it.gather(few)),
            (more, lambda it: it.gather(large)),
            (1, lambda it: it.pad([torch.ones(3 + me)] * 100)),
            (2, lambda it: it.pad(many)),
            (1, lambda it: it.reduce(few)),
            (2, lambda it: it.reduce(large)),
            (1, lambda it: it.broadcast(few)),
            (more, lambda it: it.broadcast(large)),
            (1, lambda it: it.gather_object(["text"] * 100 * me)),
            (more, lambda it: it.broadcast_object_list(["text" * 10_000, 2])),
            (1, lambda it: it.barrier()),
            (1, lambda it: it.any(True)),
        ]
        for place, (wanted, action) in enumerate(expected):
            assert count_exchanges(lambda do=action, it=operations: do(it)) == wanted, (place, more)
    assert count_exchanges(lambda: acc.gather_for_metrics({"x": torch.ones(2), "y": (torch.ones(3),)})) == 1


def check_gather_refuses_what_differs(acc: Accelerator) -> None:
    """Different shapes, types, structures or operations raise on every rank, with what each holds, and the next operation works."""
    me = acc.process_index
    text = expect(DistributedOperationException, lambda: acc.gather(torch.ones(3 + me, 2)))
    assert all(f"rank {rank}: gather: [{3 + rank}, 2] float32" in text for rank in range(acc.num_processes)), text
    assert "pad_across_processes makes" in text
    for other in (torch.ones(2, dtype=torch.int32), torch.ones(2, 1), [torch.ones(2)], "text"):
        for operation in (acc.gather, acc.pad_across_processes):
            text = expect(DistributedOperationException, lambda: operation(other if me else torch.ones(2)))  # noqa: B023
            assert "pad_across_processes makes" not in text, "what does not help is not advised"
    expect(DistributedOperationException, lambda: acc.gather({"a" if me else "b": torch.ones(1)}))
    expect(DistributedOperationException, lambda: acc.gather([torch.ones(1)] * (1 + me)))
    expect(DistributedOperationException, lambda: acc.gather(torch.ones(1) if me else "text"))
    text = expect(DistributedOperationException, lambda: acc.gather(torch.ones(1)) if me else acc.reduce(torch.ones(1)))
    assert "rank 0: reduce sum" in text
    assert "rank 1: gather" in text
    assert "the same operations" in text
    expect(DistributedOperationException, lambda: acc.broadcast_object_list([1] * (1 + me)))
    expect(DistributedOperationException, lambda: acc.wait_for_everyone() if me else acc.gather(torch.ones(1)))
    assert "'a'" in expect(TypeError, lambda: acc.gather({"a": "text", "b": torch.ones(1)}))
    jagged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    assert "nested" in expect(TypeError, lambda: acc.gather(jagged))
    assert "sparse" in expect(TypeError, lambda: acc.gather(torch.eye(2).to_sparse()))
    assert torch.equal(acc.gather(torch.tensor([me])), torch.arange(acc.num_processes))


def check_pad(acc: Accelerator) -> None:
    """Every type is padded and stays what it is, at either end, along any dimension; what has no such dimension stays."""
    me, most = acc.process_index, acc.num_processes - 1
    for dtype, dim in itertools.product(DTYPES + MORE_DTYPES, (0, 1, -1)):
        shape = [2, 2]
        shape[dim] = 3 + me
        padded = acc.pad_across_processes(torch.ones(shape).to(dtype), dim=dim)
        assert padded.dtype == dtype
        assert padded.shape[dim] == 3 + most
        assert padded.to(torch.complex128).sum().item() == 2 * (3 + me)
    first = acc.pad_across_processes(torch.ones(1 + me), pad_index=7, pad_first=True)
    assert first.tolist() == [7] * (most - me) + [1] * (1 + me)
    exact = acc.pad_across_processes(torch.ones(1 + me, dtype=torch.float64), pad_index=0.1)
    assert exact.tolist() == [1.0] * (1 + me) + [0.1] * (most - me)
    assert acc.pad_across_processes(torch.tensor(3.0)).dim() == 0
    assert acc.pad_across_processes(torch.ones(2), dim=4).shape == (2,)
    nested = acc.pad_across_processes({"x": torch.ones(1 + me), "y": [torch.zeros(2, 1)]})
    assert nested["x"].shape == (1 + most,)
    jagged = torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged)
    assert "nested" in expect(TypeError, lambda: acc.pad_across_processes(jagged))


def check_reduce(acc: Accelerator) -> None:
    """Sum, mean and maximum of every type, scaled; arguments are not changed."""
    me, size = acc.process_index, acc.num_processes
    total = sum(range(1, size + 1))
    for dtype in DTYPES + MORE_DTYPES:
        mine = torch.full((2,), me + 1).to(dtype)
        before = mine.clone()
        summed = acc.reduce({"a": mine, "b": [torch.tensor(1.0)]})
        assert torch.equal(mine, before)
        wanted = size if dtype is torch.bool else total
        assert summed["a"].tolist() == [wanted] * 2, dtype
        assert summed["b"][0].item() == size
        assert summed["a"].dtype == (torch.int64 if dtype is torch.bool else dtype)
        if not dtype.is_complex:
            assert acc.reduce(mine, "max").tolist() == [True if dtype is torch.bool else size] * 2
            assert acc.reduce(mine, "max").dtype == dtype
    assert acc.reduce(torch.tensor(float(me)), "mean").item() == sum(range(size)) / size
    assert acc.reduce(torch.tensor(me), "mean").dtype.is_floating_point
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.float16):
        most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
        for length in (1, 100_000):
            means = acc.reduce(torch.full((length,), most, dtype=dtype), "mean")
            assert means.double().unique().tolist() == [torch.tensor(most).float().item()], (
                "the sum has no room in the type"
            )
    assert acc.reduce(torch.tensor(1.0), scale=0.5).item() == size / 2
    for length, rank in itertools.product((1, 1000, 300_000), range(size)):
        mine = torch.full((length,), torch.nan if me == rank else 1.0)
        mine[-1] = 2.0
        largest = acc.reduce(mine, "max")
        assert largest[:-1].isnan().all(), (length, rank)
        assert largest[-1] == 2.0
    expect(SettingError, lambda: acc.reduce(torch.ones(1), "median"))
    expect(SettingError, lambda: acc.reduce({"a": torch.ones(1), "b": torch.ones(2, dtype=torch.complex64)}, "max"))


def check_broadcast(acc: Accelerator) -> None:
    """The tensors of one rank fill those of all, in place, strided and of every type; objects as well."""
    last = acc.num_processes - 1
    for dtype in DTYPES + MORE_DTYPES:
        mine = torch.full((3, 2), acc.process_index + 1).to(dtype)
        view = mine.t()
        returned = acc.broadcast({"a": view, "b": torch.zeros(0)}, from_process=last)
        assert returned["a"] is view
        wanted = torch.full((3, 2), last + 1).to(dtype).to(torch.complex128)
        assert torch.equal(mine.to(torch.complex128), wanted), dtype
    parameter = nn.Parameter(torch.full((2,), float(acc.process_index)))
    acc.broadcast([parameter])
    assert parameter.tolist() == [0.0, 0.0]
    values = [acc.process_index, {"k": acc.process_index}]
    assert acc.broadcast_object_list(values, from_process=1) is values
    assert values == [1, {"k": 1}]
    expect(SettingError, lambda: acc.broadcast(torch.ones(1), from_process=99))


def check_broadcast_refuses_what_cannot_be_filled(acc: Accelerator) -> None:
    """A tensor of any rank that cannot be written is an error on every rank, with rank and place, unless that rank is the source."""
    last, me = acc.num_processes - 1, acc.process_index
    with torch.inference_mode():
        made = torch.full((3,), float(me))
        assert acc.broadcast(made.clone()).tolist() == [0.0] * 3
    for fixed in (made, torch.full((1,), float(me)).expand(3)):
        given = {"x": torch.full((3,), float(me)), "y": fixed if me == last else torch.zeros(3)}
        text = expect(UnsupportedError, lambda: acc.broadcast(given))  # noqa: B023
        assert f"['y'] of rank {last}" in text
        assert given["x"].tolist() == [float(me)] * 3
        acc.broadcast(given, from_process=last)
        assert given["y"].tolist() == [float(last)] * 3


def check_objects(acc: Accelerator) -> None:
    """gather_object joins one level; gather_for_metrics keeps the structure and gathers leaf by leaf."""
    me, size = acc.process_index, acc.num_processes
    assert acc.gather_object([f"r{me}"] * (1 + me)) == [f"r{rank}" for rank in range(size) for _ in range(1 + rank)]
    pair = acc.gather_for_metrics(([f"a{me}"], [f"b{me}"]))
    assert pair == ([f"a{rank}" for rank in range(size)], [f"b{rank}" for rank in range(size)])
    mixed = acc.gather_for_metrics({"id": torch.tensor([me]), "text": [str(me)] * (me + 1), "task": "sum"})
    assert mixed["id"].tolist() == list(range(size))
    assert mixed["text"] == [str(rank) for rank in range(size) for _ in range(rank + 1)]
    assert mixed["task"] == ["sum"] * size
    tokens = acc.gather_for_metrics([[me, 10], [me]])
    assert tokens == [row for rank in range(size) for row in ([rank, 10], [rank])]
    results = acc.gather_for_metrics({"found": [{"id": me, "labels": ["a"] * me}] * (me + 1)})
    assert results == {"found": [{"id": rank, "labels": ["a"] * rank} for rank in range(size) for _ in range(rank + 1)]}
    fields = acc.gather_for_metrics(
        [(f"a{me}", "x"), (f"b{me}", "y")]
    )  # as torch's loaders put two texts a sample together
    assert fields == [
        tuple(value for rank in range(size) for value in (f"{name}{rank}", second)) for name, second in ("ax", "by")
    ]
    boxes = acc.gather_for_metrics([{"boxes": torch.ones(me, 4)}], use_gather_object=True)
    assert [len(item["boxes"]) for item in boxes] == list(range(size))
