# SPDX-License-Identifier: Apache-2.0
"""The parts of SGLang that gpumem.sglang uses: a model of one layer, a configuration that tests
change, and hooks."""
import contextlib
import dataclasses
import sys
import types

import torch

__version__ = "0.0"


def _module(name, **names):
    made = types.ModuleType(f"{__name__}.{name}")
    made.__dict__.update(names)
    made.__path__ = []
    sys.modules[made.__name__] = made
    owner, _, leaf = name.rpartition(".")
    setattr(sys.modules[f"{__name__}.{owner}" if owner else __name__], leaf, made)


# ---- Configuration -------------------------------------------------------------------------------


class Bag:
    def __init__(self, _subs=None, **fields):
        self._fields, self._subs = fields, _subs or {}

    def __getattr__(self, name):
        for table in ("_subs", "_fields"):
            if name in self.__dict__[table]:
                return self.__dict__[table][name]
        raise AttributeError(name)


class Parallel:
    def __init__(self):
        self._config = Bag(tp_size=1, pp_size=1, nccl_port=1000)
        self.tp_size = self.pp_size = 1
        self.tp_rank = self.pp_rank = self.moe_ep_rank = self.moe_dp_rank = 0
        self.attn_tp_rank = self.attn_cp_rank = 0


model = Bag(weight_cache_mode="off", is_startup_weight_load_overlap=False, dtype="float32")
execution = Bag({"moe": Bag(enable_eplb=False),
                 "offload": Bag(cpu_offload_gb=0, offload_group_size=-1)}, attention_backend="a")
parallel = Parallel()


class HFConfig:
    quantization_config = None

    def to_json_string(self):
        return "{}"


@dataclasses.dataclass
class ModelConfig:
    model_path: str
    revision: str = None
    dtype: str = "float32"
    quantization: str = None
    hf_config: HFConfig = dataclasses.field(default_factory=HFConfig)


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "auto"
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    download_dir: str = None
    draft_model_idx: int = None


# ---- Models and loaders --------------------------------------------------------------------------

loads = []
refreshed = []


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty((6,), dtype=torch.float32),
                                         requires_grad=False)
        self.register_buffer("cache", torch.empty((3,), dtype=torch.float32), persistent=False)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()

    def load_weights(self, weights):
        raise AssertionError("weights in place")


class BaseModelLoader:
    preloaded_weights_bytes = 0

    def __init__(self, load_config):
        self.load_config = load_config


class DefaultModelLoader(BaseModelLoader):
    def download_model(self, model_config):
        pass

    def load_model(self, *, model_config, device_config):
        loads.append(self.load_config)
        model_config.dtype = "changed by loading"
        made = Model()
        made.layer.weight.data = torch.frombuffer(bytearray(range(24)), dtype=torch.float32)
        made.layer.cache.data = torch.frombuffer(bytearray(range(12)), dtype=torch.float32)
        # Tensors that are no parameters: of memory of their own, and a view of a parameter.
        made.layer.absorbed = torch.frombuffer(bytearray(range(8)), dtype=torch.float32)
        made.layer.view = made.layer.weight.data[2:4]
        made.layer.weight.format_ue8m0 = True
        return made.eval()


class PreshardedModelLoader(DefaultModelLoader):
    @staticmethod
    def _rebind_parameter_aliases(made):
        refreshed.append(made)


class IpcModelLoader(BaseModelLoader):
    @staticmethod
    def _rebuild_stale_views(made):
        refreshed.append(made)


def get_model_loader(load_config, model_config=None):
    return DefaultModelLoader(load_config)


def check_ipc_quant_support(method, config, *, where):
    if method not in ("", "fp8"):
        raise RuntimeError(f"{where}: {method} is not verified")


# ---- Updates, and hooks --------------------------------------------------------------------------


class Output:
    def __init__(self, success=True, message=""):
        self.success, self.message = success, message


class WeightUpdater:
    def __init__(self, made):
        self.get_model = lambda: made

    def update_weights_from_disk(self, path):
        return True, path

    load_weights_from_distributed = update_weights_from_tensor = update_weights_from_ipc = (
        update_weights_from_disk)


class SchedulerWeightUpdaterManager:
    def __init__(self, made):
        self.tp_worker = types.SimpleNamespace(model_runner=types.SimpleNamespace(model=made))
        self.calls = []

    def begin_weight_update(self, request):
        return Output()

    def release_memory_occupation(self, request):
        self.calls.append(("release", request.tags))
        return Output()

    def resume_memory_occupation(self, request):
        self.calls.append(("resume", request.tags))
        return Output()


class HookType:
    AROUND = "around"


class HookRegistry:
    hooks = {}

    @classmethod
    def register(cls, target, hook, hook_type):
        assert hook_type == HookType.AROUND
        cls.hooks[target] = hook

    @classmethod
    def call(cls, target, original, *arguments):
        """Calls a function with its hook, as apply_hooks() arranges it."""
        return cls.hooks[f"sglang.srt.{target}"](original, *arguments)


_module("srt")
_module("srt.constants", GPU_MEMORY_ALL_TYPES=["kv_cache", "weights", "cuda_graph"],
        GPU_MEMORY_TYPE_WEIGHTS="weights")
_module("srt.managers")
_module("srt.managers.io_struct", BeginWeightUpdateReqOutput=Output,
        ReleaseMemoryOccupationReqOutput=Output, ResumeMemoryOccupationReqOutput=Output)
_module("srt.model_loader")
_module("srt.model_loader.loader", BaseModelLoader=BaseModelLoader,
        PreshardedModelLoader=PreshardedModelLoader,
        get_model_architecture=lambda model_config: (Model, "Model"),
        _get_quantization_config=lambda model_config, load_config: None,
        _initialize_model=lambda model_config, load_config, quantization: Model())
_module("srt.model_loader.utils", set_default_torch_dtype=contextlib.nullcontext)
_module("srt.plugins")
_module("srt.plugins.hook_registry", HookRegistry=HookRegistry, HookType=HookType)
_module("srt.runtime_context", get_exec=lambda: execution, get_model=lambda: model,
        get_parallel=lambda: parallel)
_module("srt.weight_cache")
_module("srt.weight_cache.ipc_loader", IpcModelLoader=IpcModelLoader)
_module("srt.weight_cache.protocol", check_ipc_quant_support=check_ipc_quant_support,
        get_quant_method_name=lambda quantization: quantization or "")
