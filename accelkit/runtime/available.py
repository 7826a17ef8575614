"""What this machine has: optional libraries, kinds of device, precisions. Asked once per question, never during a step."""

import importlib.metadata
import importlib.util
import operator
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final

import torch
from torch.torch_version import TorchVersion

from accelkit.contract import names
from accelkit.runtime import devices, env
from accelkit.runtime.errors import UnsupportedError

_OPERATORS: Final = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip


def compare_versions(library_or_version: Any, operation: str, requirement_version: str) -> bool:
    """Whether a library's version (or a version) stands in a relation ("<", "<=", "==", "!=", ">=", ">") to another."""
    if operation not in _OPERATORS:
        raise ValueError(f"operation {operation!r}: must be one of {', '.join(_OPERATORS)}")
    text = str(library_or_version)
    found = importlib.metadata.version(text) if not text[:1].isdigit() else text
    return bool(_OPERATORS[operation](TorchVersion(found), requirement_version))


def is_torch_version(operation: str, version: str) -> bool:
    """Whether torch's version stands in a relation to another; local parts such as `+cpu` do not count."""
    return compare_versions(torch.__version__.partition("+")[0], operation, version)


@cache
def is_library(module: str, distribution: str = "", minimum: str = "") -> bool:
    """Whether a library can be imported and is installed (a folder of its name does not count), in a version not below `minimum`."""
    if importlib.util.find_spec(module) is None:
        return False
    try:
        found = importlib.metadata.version(distribution or module)
    except importlib.metadata.PackageNotFoundError:
        return False
    return not minimum or compare_versions(found, ">=", minimum)


def how_to_install(packages: str) -> str:
    """What to type where a library is missing: in a container it belongs to the image, which has no pip for its user."""
    if env.text(names.ENV_IMAGE_DIGEST):
        return f"add it to the image: a line {packages!r} in FILE, kit build IMAGE --requirements FILE"
    return f"pip install {packages}"


def _library(module: str, distribution: str = "", minimum: str = "") -> Callable[[], bool]:
    """A function without arguments that asks for one library."""
    return lambda: is_library(module, distribution, minimum)


def _device(name: str) -> Callable[..., bool]:
    """A function that asks for one kind of device; whatever it is given besides changes nothing."""

    def ask(*_: Any, **__: Any) -> bool:
        module = getattr(torch, name, None)
        return bool(module is not None and getattr(module, "is_available", lambda: False)())

    return ask


is_aim_available = _library("aim")
is_boto3_available = _library("boto3")
is_clearml_available = _library("clearml")
is_comet_ml_available = _library("comet_ml")
is_datasets_available = _library("datasets")
is_deepspeed_available = _library("deepspeed")
is_dvclive_available = _library("dvclive")
is_import_timer_available = _library("import_timer")
is_lomo_available = _library("lomo_optim", "lomo-optim")
is_matplotlib_available = _library("matplotlib")
is_megatron_lm_available = _library("megatron", "megatron-core")
is_mlflow_available = _library("mlflow")
is_msamp_available = _library("msamp", "ms-amp")
is_pandas_available = _library("pandas")
is_peft_available = _library("peft")
is_pynvml_available = _library("pynvml", "nvidia-ml-py")
is_amdsmi_available = _library("amdsmi")
is_pytest_available = _library("pytest")
is_rich_available = _library("rich")
is_sagemaker_available = _library("sagemaker")
is_schedulefree_available = _library("schedulefree")
is_swanlab_available = _library("swanlab")
is_tensorboard_available = _library("tensorboard")
is_timm_available = _library("timm")
is_torchao_available = _library("torchao", minimum="0.6.1")
is_torchdata_available = _library("torchdata")
is_torchdata_stateful_dataloader_available = _library("torchdata", minimum="0.8.0")
is_torchvision_available = _library("torchvision")
is_tqdm_available = _library("tqdm")
is_trackio_available = _library("trackio")
is_transformer_engine_available = _library("transformer_engine", "transformer-engine")
is_transformer_engine_mxfp8_available = _library("transformer_engine", "transformer-engine", "2.0.0")
is_transformers_available = _library("transformers")
is_triton_available = _library("triton")
is_wandb_available = _library("wandb")

is_cuda_available = _device("cuda")
is_hpu_available = _device("hpu")
is_mlu_available = _device("mlu")
is_musa_available = _device("musa")
is_neuron_available = _device("neuron")
is_npu_available = _device("npu")
is_sdaa_available = _device("sdaa")
is_xpu_available = _device("xpu")


def is_numpy_available(min_version: str = "1.25.0") -> bool:
    """Whether numpy is installed, not below a version."""
    return is_library("numpy", minimum=min_version)


def is_bnb_available(min_version: str | None = None) -> bool:
    """Whether bitsandbytes is installed, not below a version."""
    return is_library("bitsandbytes", minimum=min_version or "")


is_4bit_bnb_available = _library("bitsandbytes", minimum="0.39.0")
is_8bit_bnb_available = _library("bitsandbytes", minimum="0.37.2")
is_bitsandbytes_multi_backend_available = _library("bitsandbytes", minimum="0.45.0")


def is_mps_available(min_version: str = "1.12") -> bool:
    """Whether this machine has Apple's GPU and torch, not below a version, can use it."""
    return torch.backends.mps.is_available() and is_torch_version(">=", min_version)


def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Whether torch_xla is installed; `check_is_tpu`: and told to run on TPUs. It is not asked: that would start it."""
    return is_library("torch_xla") and not check_is_gpu and (not check_is_tpu or env.text("PJRT_DEVICE") == "TPU")


def is_torch_distributed_available() -> bool:
    """Whether torch was built to run on several ranks."""
    return torch.distributed.is_available()


def is_xccl_available() -> bool:
    """Whether torch was built with the collectives of Intel's GPUs."""
    return torch.distributed.is_available() and torch.distributed.is_xccl_available()


def is_rocm_available() -> bool:
    """Whether torch was built for AMD's GPUs."""
    return getattr(torch.version, "hip", None) is not None


def is_habana_gaudi1() -> bool:
    """Whether this machine has a first-generation Gaudi. No strategy here runs on one."""
    return False


def is_pippy_available() -> bool:
    """Whether torch has pipelines."""
    return torch.distributed.is_available() and is_torch_version(">=", "2.4.0")


def is_weights_only_available() -> bool:
    """Whether `torch.load` can refuse code: every torch that this library runs with can."""
    return True


def is_bf16_available(ignore_tpu: bool = False) -> bool:  # noqa: ARG001  (as scripts call it)
    """Whether models can compute in bfloat16 on this machine's device."""
    return devices.choose(cpu=False).supports("bf16")


def is_fp16_available() -> bool:
    """Whether models can compute in float16 on this machine's device."""
    return devices.choose(cpu=False).supports("fp16")


def is_fp8_available() -> bool:
    """Whether the library for 8-bit floats is installed; see also `check_cuda_fp8_capability`."""
    return is_torchao_available()


def check_cuda_fp8_capability() -> bool:
    """Whether this machine's GPU computes in 8-bit floats."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def torchao_required(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: raise UnsupportedError when the function is called and torchao is not installed."""
    return _required(func, "torchao", is_torchao_available)


def deepspeed_required(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: raise UnsupportedError when the function is called and deepspeed is not installed."""
    return _required(func, "deepspeed", is_deepspeed_available)


def _required(func: Callable[..., Any], library: str, is_there: Callable[[], bool]) -> Callable[..., Any]:
    @wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_there():
            raise UnsupportedError(f"{func.__name__} needs {library}", hint=f"pip install {library}")
        return func(*args, **kwargs)

    return call
