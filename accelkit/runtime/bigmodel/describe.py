"""Tell what a model consists of, without its weights: `python -m accelkit.runtime.bigmodel.describe MODEL [--trust-remote-code]`.

MODEL is a folder with a `config.json` of transformers (or that file, or a name that transformers knows), or a checkpoint. The answer is
written to the run's exchange folder, or to standard output where kit started nothing.
"""

import sys
from pathlib import Path
from typing import Any

from torch import nn

from accelkit.contract import anatomy, codec
from accelkit.contract.anatomy import Anatomy, TensorPart
from accelkit.runtime.bigmodel.checkpoint import open_checkpoint
from accelkit.runtime.bigmodel.device_map import units_of
from accelkit.runtime.bigmodel.empty import init_empty_weights
from accelkit.runtime.bigmodel.sizes import unsplit_classes
from accelkit.runtime.bigmodel.tensors import Slot, all_slots
from accelkit.runtime.env import exchange_folder
from accelkit.runtime.errors import MissingPackageError

CONFIG = "config.json"


def main(arguments: list[str]) -> None:
    """Describe the model that is named."""
    trusted = "--trust-remote-code" in arguments
    target = next(word for word in arguments if not word.startswith("--"))
    found = describe(target, trust_remote_code=trusted)
    folder = exchange_folder()
    if folder is None:
        sys.stdout.write(codec.dumps(found) + "\n")
    else:
        codec.write(folder / anatomy.FILE, found)


def describe(target: str, *, trust_remote_code: bool = False) -> Anatomy:
    """What a model consists of, from its config or its checkpoint. Raises what transformers raises for a config it cannot use."""
    path = Path(target)
    if path.name == CONFIG:
        path = path.parent
    if path.exists() and not (path / CONFIG).exists():
        return of_checkpoint(path)
    return of_model(*build_empty(str(path) if path.exists() else target, trust_remote_code=trust_remote_code))


def build_empty(target: str, *, trust_remote_code: bool) -> tuple[nn.Module, str]:
    """The model that a config describes, without memory; and one line about it."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(
            f"{target} is to be built by transformers, which is not installed where this runs",
            hint="add it to the image, kit build cpu --requirements FILE, or use --on local where it is installed",
        ) from error
    automatic: Any = transformers.AutoModel
    config: Any = transformers.AutoConfig.from_pretrained(target, trust_remote_code=trust_remote_code)
    names = getattr(config, "architectures", None) or ()
    kind: Any = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    with init_empty_weights():
        model = (
            automatic.from_config(config, trust_remote_code=trust_remote_code)
            if kind is None
            else kind._from_config(config)  # noqa: SLF001  (what the Auto classes call)
        )
    model.tie_weights()
    return model, f"{type(model).__name__}, built from its config"


def of_model(model: nn.Module, source: str) -> Anatomy:
    """The anatomy of a built model, whose classes in `_no_split_modules` are layers."""
    layers: dict[int, list[str]] = {}
    for unit in units_of(model, "", unsplit_classes(model, None)):
        for key in unit.tensors:
            layers.setdefault(key, []).append(unit.name)
    slots: dict[int, Slot] = {}
    for slot in all_slots(model):
        slots.setdefault(id(slot.tensor), slot)
    return Anatomy(source=source, tensors=tuple(_part(slots[key], names) for key, names in layers.items()))


def _part(slot: Slot, layers: list[str]) -> TensorPart:
    count = slot.tensor.numel()
    return TensorPart(
        name=slot.name,
        layers=tuple(layers),
        dtype=str(slot.tensor.dtype).removeprefix("torch."),
        count=count,
        bytes=count * slot.tensor.element_size(),
        is_trained=not slot.is_buffer,
    )


def of_checkpoint(path: Path) -> Anatomy:
    """The anatomy that a checkpoint's names tell, in any form that can be loaded."""
    tensors = open_checkpoint(path).tensors
    return anatomy.from_names(
        f"{len(tensors)} tensors of {path.name}",
        {
            name: (str(stored.dtype).removeprefix("torch."), stored.size // stored.dtype.itemsize, stored.size)
            for name, stored in tensors.items()
        },
    )


if __name__ == "__main__":
    main(sys.argv[1:])
