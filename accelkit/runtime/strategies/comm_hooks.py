"""How gradients travel under DistributedDataParallel: torch's communication hooks, chosen by name."""

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from accelkit.runtime.enumerations import DDPCommunicationHookType
from accelkit.runtime.errors import SettingError
from accelkit.runtime.settings import DistributedDataParallelKwargs

_HOOKS: dict[DDPCommunicationHookType, Any] = {
    DDPCommunicationHookType.FP16: default_hooks.fp16_compress_hook,
    DDPCommunicationHookType.BF16: default_hooks.bf16_compress_hook,
    DDPCommunicationHookType.POWER_SGD: powerSGD_hook.powerSGD_hook,
    DDPCommunicationHookType.BATCHED_POWER_SGD: powerSGD_hook.batched_powerSGD_hook,
}
_WRAPPERS: dict[DDPCommunicationHookType, Any] = {
    DDPCommunicationHookType.FP16: default_hooks.fp16_compress_wrapper,
    DDPCommunicationHookType.BF16: default_hooks.bf16_compress_wrapper,
}
_WITH_STATE = (DDPCommunicationHookType.POWER_SGD, DDPCommunicationHookType.BATCHED_POWER_SGD)


def register(model: DistributedDataParallel, settings: DistributedDataParallelKwargs) -> None:
    """Give `model` the hook that `settings` name; nothing for "no". Raises SettingError for a wrapper that is not one."""
    kind = DDPCommunicationHookType(settings.comm_hook)
    wrapper = DDPCommunicationHookType(settings.comm_wrapper)
    if kind is DDPCommunicationHookType.NO:
        return
    hook = _HOOKS[kind]
    if wrapper is not DDPCommunicationHookType.NO:
        if wrapper not in _WRAPPERS:
            raise SettingError(f"comm_wrapper={wrapper.value!r}: must be one of no, fp16, bf16")
        hook = _WRAPPERS[wrapper](hook)
    state: Any = None
    if kind in _WITH_STATE:
        state = powerSGD_hook.PowerSGDState(process_group=None, **settings.comm_state_option)
    model.register_comm_hook(state, hook)
