"""Enumerations that scripts of this API family compare with. Members equal their text, and `"fp16" in PrecisionType` holds."""

from enum import Enum, EnumMeta
from typing import Any


class _Listed(EnumMeta):
    """An enumeration that contains its values as well as its members."""

    def __contains__(cls, item: Any) -> bool:
        return item in cls._value2member_map_


class ListedEnum(str, Enum, metaclass=_Listed):
    """Base: `str(member)` is the value, `list()` gives all values."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def list(cls) -> "list[str]":
        """All values, in order."""
        return [member.value for member in cls]


class PrecisionType(ListedEnum):
    """Names of precisions."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class RNGType(ListedEnum):
    """Random generators that can be made the same on all ranks."""

    TORCH = "torch"
    CUDA = "cuda"
    MPS = "mps"
    XPU = "xpu"
    XLA = "xla"
    GENERATOR = "generator"


class DDPCommunicationHookType(ListedEnum):
    """How gradients travel under DistributedDataParallel: as they are, in half precision, or compressed by PowerSGD."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


class DynamoBackend(ListedEnum):
    """Backends of torch.compile that scripts name; torch's own name is the same in lower case."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"
    NEURON = "NEURON"


class FP8BackendType(ListedEnum):
    """Libraries that compute in 8 bits. Only torchao is used here."""

    NO = "NO"
    AO = "AO"


class ComputeEnvironment(str, Enum):
    """Where a run takes place, in the words of configuration files."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"
