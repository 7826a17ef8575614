"""Names of the files in a checkpoint. The first of a kind has no number."""


def model(index: int, *, safe: bool = True) -> str:
    """Weights of a model, in the safetensors format or in torch's."""
    return _numbered("model", index, ".safetensors") if safe else _numbered("pytorch_model", index, ".bin")


def model_extra(index: int) -> str:
    """What a model's state holds beside tensors that safetensors can store."""
    return _numbered("model_extra_state", index, ".bin")


def optimizer(index: int) -> str:
    """State of an optimizer."""
    return _numbered("optimizer", index, ".bin")


def scheduler(index: int) -> str:
    """State of a scheduler."""
    return _numbered("scheduler", index, ".bin")


def loader(index: int) -> str:
    """Epoch and position of a loader."""
    return _numbered("dl_state_dict", index, ".bin")


SCALER = "scaler.pt"
"""The loss scaler."""


def rank(index: int) -> str:
    """Random generators and the accumulation step of a rank, by its index among all ranks."""
    return f"random_states_{index}.pkl"


def custom(index: int) -> str:
    """A registered object."""
    return f"custom_checkpoint_{index}.pkl"


def _numbered(stem: str, index: int, suffix: str) -> str:
    return f"{stem}{suffix}" if index == 0 else f"{stem}_{index}{suffix}"
