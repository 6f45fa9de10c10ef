# SPDX-License-Identifier: Apache-2.0
"""The parts of vLLM that gpumem.vllm uses: a model of one layer, whose weights are processed after
loading, and a configuration that tests change."""
import contextlib
import dataclasses
import hashlib
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


class Config(types.SimpleNamespace):
    def compute_hash(self):
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "gpumem"
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    ignore_patterns: tuple = ()
    download_dir: str = None
    device: str = None


def configuration(model, **extra):
    """Returns a configuration. `model`: a folder of files."""
    found = Config(
        model_config=Config(
            model=model, model_weights="", revision=None, dtype=torch.float32, seed=0,
            convert_type="none", enable_sleep_mode=False, sleep_mode_backend="cumem",
            sleep_preserve_parameter_names=[], supported=True, width=4),
        parallel_config=Config(enable_eplb=False, enable_expert_parallel=False,
                               data_parallel_rank=0, world_size=1),
        offload_config=Config(uva=Config(cpu_offload_gb=0),
                              prefetch=Config(offload_group_size=0)),
        attention_config=Config(), cache_config=Config(), kernel_config=Config(),
        device_config=Config(device="cpu"), lora_config=None, weight_transfer_config=None,
        compilation_config=Config(static_forward_context={}),
        load_config=LoadConfig(model_loader_extra_config=extra))
    return found


# ---- Models and loaders --------------------------------------------------------------------------

processed = []  # [whether a publisher's weights were used]
_processed_already = False
_loaders = {}
rank = [0, 1]


class BaseModelLoader:
    def __init__(self, load_config):
        self.load_config = load_config


class QuantizeMethodBase:
    supports_pre_processed_weights = True


class Method(QuantizeMethodBase):
    """Transposes a weight, and makes a scale of a placeholder."""

    def process_weights_after_loading(self, layer):
        processed.append(_processed_already)
        if not _processed_already:
            layer.weight = torch.nn.Parameter(layer.weight.data.t(), requires_grad=False)
            layer.weight_scale = torch.nn.Parameter(layer.scale_inv.data.clone(),
                                                    requires_grad=False)
            layer.weight_scale.is_ready = True
        del layer._parameters["scale_inv"]


class Layer(torch.nn.Module):
    def __init__(self, config, name):
        super().__init__()
        context = config.compilation_config.static_forward_context
        assert name not in context, f"duplicate layer {name}"
        context[name] = self
        width = config.model_config.width
        self.weight = torch.nn.Parameter(torch.empty((width, 2), dtype=torch.float32),
                                         requires_grad=False)
        self.weight.weight_loader = len
        self.scale_inv = torch.nn.Parameter(torch.empty((1,), dtype=torch.float32),
                                            requires_grad=False)
        self.register_buffer("cache", torch.empty((3,), dtype=torch.float32), persistent=False)
        self.quant_method = Method()
        self.quant_method.supports_pre_processed_weights = config.model_config.supported


class Model(torch.nn.Module):
    def __init__(self, config, prefix):
        super().__init__()
        self.layer = Layer(config, f"{prefix}layer")
        self.head = torch.nn.Module()
        self.head.weight = torch.nn.Parameter(torch.empty((6,), dtype=torch.float32),
                                              requires_grad=False)
        self.tied = torch.nn.Module()
        self.tied.weight = self.head.weight
        self.consumed = torch.nn.Parameter(torch.empty((1,), dtype=torch.float32),
                                           requires_grad=False)

    def load_weights(self):
        raise AssertionError("weights in place")


def initialize_model(vllm_config, model_config, prefix=""):
    assert model_config is vllm_config.model_config
    return Model(vllm_config, prefix)


def process_weights_after_loading(model, model_config, target_device):
    del model_config, target_device
    model.layer.quant_method.process_weights_after_loading(model.layer)


class DefaultModelLoader(BaseModelLoader):
    """Fills the tensors with numbers of the rank's, instead of with those of files."""

    loads = []  # the formats that were loaded

    def download_model(self, model_config):
        pass

    def load_model(self, vllm_config, model_config, prefix=""):
        self.loads.append(self.load_config.load_format)
        model_config.changed_by_loading = True
        model = initialize_model(vllm_config, model_config, prefix)
        for number, (_, tensor) in enumerate([*model.named_parameters(),
                                              *model.named_buffers()]):
            flat = torch.frombuffer(bytearray(4 * tensor.numel()), dtype=torch.float32)
            tensor.data = flat if len(tensor.shape) == 1 else torch.as_strided(
                flat, tuple(tensor.shape), (tensor.shape[1], 1), 0)
            for at in range(flat.numel()):
                flat[at:at + 1].copy_(_number(1000 * rank[0] + 10 * number + at))
        process_weights_after_loading(model, model_config, None)
        model.has_own_lm_head = True
        del model._parameters["consumed"]
        return model.eval()


def _number(value):
    import struct
    return torch.frombuffer(bytearray(struct.pack("f", value)), dtype=torch.float32)


def register_model_loader(load_format):
    def register(loader):
        _loaders[load_format] = loader
        return loader
    return register


def get_model_loader(load_config):
    return _loaders.get(load_config.load_format, DefaultModelLoader)(load_config)


def export_model_attrs(model):
    return {name: True for name in ("has_own_lm_head",) if hasattr(model, name)}


@contextlib.contextmanager
def weights_already_processed():
    global _processed_already
    _processed_already = True
    yield
    _processed_already = False


# ---- Sleep mode ----------------------------------------------------------------------------------


class CuMemBackend:
    def __init__(self):
        self.suspended = []

    def suspend(self, level=1):
        self.suspended.append(level)


class SleepModeBackendFactory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError(name)
        cls._registry[name] = (module_path, class_name)


_module("envs", compile_factors=dict)
_module("device_allocator")
_module("device_allocator.sleep_mode_backend", CuMemBackend=CuMemBackend,
        SleepModeBackendFactory=SleepModeBackendFactory)
_module("distributed", get_pp_group=lambda: Config(rank_in_group=0, world_size=1),
        get_tensor_model_parallel_rank=lambda: rank[0],
        get_tensor_model_parallel_world_size=lambda: rank[1])
_module("model_executor")
_module("model_executor.layers")
_module("model_executor.layers.quantization")
_module("model_executor.layers.quantization.base_config", QuantizeMethodBase=QuantizeMethodBase)
_module("model_executor.model_loader", get_model_loader=get_model_loader,
        register_model_loader=register_model_loader)
_module("model_executor.model_loader.base_loader", BaseModelLoader=BaseModelLoader)
_module("model_executor.model_loader.utils", initialize_model=initialize_model,
        process_weights_after_loading=process_weights_after_loading)
_module("model_executor.model_loader.weight_cache")
_module("model_executor.model_loader.weight_cache.utils",
        EXPORTED_MODEL_ATTRS=("has_own_lm_head",), export_model_attrs=export_model_attrs)
_module("model_executor.utils", weights_already_processed=weights_already_processed)
_module("utils")
_module("utils.torch_utils", set_default_torch_dtype=contextlib.nullcontext)
