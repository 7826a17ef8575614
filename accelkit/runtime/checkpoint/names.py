"""Names of the files in a checkpoint. The first of a kind has no number."""

from typing import Final

MODEL_NAME: Final = "pytorch_model"
SAFE_MODEL_NAME: Final = "model"
OPTIMIZER_NAME: Final = "optimizer"
SCHEDULER_NAME: Final = "scheduler"
SCALER_NAME: Final = "scaler.pt"
"""The loss scaler."""
RNG_STATE_NAME: Final = "random_states"
WEIGHTS_NAME: Final = f"{MODEL_NAME}.bin"
WEIGHTS_INDEX_NAME: Final = f"{WEIGHTS_NAME}.index.json"
SAFE_WEIGHTS_NAME: Final = f"{SAFE_MODEL_NAME}.safetensors"
SAFE_WEIGHTS_INDEX_NAME: Final = f"{SAFE_WEIGHTS_NAME}.index.json"


def model(index: int, *, safe: bool = True) -> str:
    """Weights of a model, in the safetensors format or in torch's."""
    return _numbered(SAFE_MODEL_NAME, index, ".safetensors") if safe else _numbered(MODEL_NAME, index, ".bin")


def model_extra(index: int) -> str:
    """What a model's state holds beside tensors that safetensors can store."""
    return _numbered("model_extra_state", index, ".bin")


def optimizer(index: int) -> str:
    """State of an optimizer."""
    return _numbered(OPTIMIZER_NAME, index, ".bin")


def scheduler(index: int) -> str:
    """State of a scheduler."""
    return _numbered(SCHEDULER_NAME, index, ".bin")


def loader(index: int) -> str:
    """Epoch and position of a loader."""
    return _numbered("dl_state_dict", index, ".bin")


def shards_of_model(index: int) -> str:
    """Folder of a model's weights, where each rank wrote its part."""
    return f"pytorch_model_fsdp_{index}"


def shards_of_optimizer(index: int) -> str:
    """Folder of the divided tensors of an optimizer's state."""
    return f"optimizer_{index}"


def rank(index: int) -> str:
    """Random generators and the accumulation step of a rank, by its index among all ranks."""
    return f"{RNG_STATE_NAME}_{index}.pkl"


def custom(index: int) -> str:
    """A registered object."""
    return f"custom_checkpoint_{index}.pkl"


def _numbered(stem: str, index: int, suffix: str) -> str:
    return f"{stem}{suffix}" if index == 0 else f"{stem}_{index}{suffix}"
