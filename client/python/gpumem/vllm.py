# SPDX-License-Identifier: Apache-2.0
"""vLLM's weights in published memory: the load format "gpumem".

    vllm serve MODEL --load-format gpumem

The first worker of a node loads the model as vLLM does, processes its weights, and publishes them.
Every other worker with the same weights, and every restart, maps them. The package's entry point
registers the format in each process of vLLM. See docs/how-to/serve-with-engines.md.

--model-loader-extra-config has options, as JSON. "load_format" is vLLM's format for the first
worker ("auto"). "name" is the publication's prefix ("vllm"). "wait" is in seconds, for another
worker that loads (no limit). "expire_after" is how many seconds weights stay without a worker (for
ever). "content_id" names the files' content, in place of their hashes. Others are for that load
format.
"""
from __future__ import annotations

import copy
import dataclasses
import logging
from typing import Any, Iterator, Tuple

import torch  # type: ignore[import]
import vllm  # type: ignore[import]
from vllm import envs
from vllm.device_allocator.sleep_mode_backend import (  # type: ignore[import]
    CuMemBackend, SleepModeBackendFactory)
from vllm.distributed import (  # type: ignore[import]
    get_pp_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size)
from vllm.model_executor.layers.quantization.base_config import (  # type: ignore[import]
    QuantizeMethodBase)
from vllm.model_executor.model_loader import (  # type: ignore[import]
    get_model_loader, register_model_loader)
from vllm.model_executor.model_loader.base_loader import BaseModelLoader  # type: ignore[import]
from vllm.model_executor.model_loader.utils import (  # type: ignore[import]
    initialize_model, process_weights_after_loading)
from vllm.model_executor.model_loader.weight_cache.utils import (  # type: ignore[import]
    EXPORTED_MODEL_ATTRS, export_model_attrs)
from vllm.model_executor.utils import weights_already_processed  # type: ignore[import]
from vllm.utils.torch_utils import set_default_torch_dtype  # type: ignore[import]

from . import _engines
from .errors import UnimplementedError

__all__ = ["ModelLoader", "SleepBackend", "register"]

_LOG = logging.getLogger("vllm.plugins.gpumem")
_SHARED = "the weights are shared with other processes, and mapped read-only. Start another " \
          "engine for new weights, or use --load-format auto"
# The parts of vLLM's configuration that decide what weights become.
_CONFIGS = ("attention_config", "cache_config", "kernel_config", "offload_config",
            "parallel_config")


class ModelLoader(BaseModelLoader):  # type: ignore[misc]
    """The loader of the format "gpumem"."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        self._options = _engines.Options.take(extra, "vllm")
        self._inner = dataclasses.replace(load_config, model_loader_extra_config=extra,
                                          load_format=extra.pop("load_format", "auto"))

    def download_model(self, model_config: Any) -> None:
        """Downloads the files, as vLLM's loader does."""
        get_model_loader(self._inner).download_model(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Raises UnimplementedError: published weights are not written to."""
        raise UnimplementedError(f"gpumem does not load in place: {_SHARED}")

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Returns the bytes that are published on this GPU already, for vLLM's budget."""
        _refuse(vllm_config, self._inner)
        content = self._content_id(vllm_config, vllm_config.model_config, "")
        return _engines.resident(self._options.name_of(content))

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """Returns the model, with the published weights: loads and publishes them if need be.

        Raises UnimplementedError if the model or a setting of vLLM needs weights of its process.
        """
        _refuse(vllm_config, self._inner)
        target = _target(vllm_config, self.load_config)
        content = self._content_id(vllm_config, model_config, prefix)
        # A model registers its layers in the configuration, and loading changes it. So the load
        # has a copy, which shares only the layers that there are already.
        layers = vllm_config.compilation_config.static_forward_context
        private = copy.deepcopy((vllm_config, model_config), {id(layers): dict(layers)})
        weights = self._options.weights(
            content, target, lambda: self._load(*private, prefix, target), _LOG)
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                model = initialize_model(vllm_config=vllm_config, model_config=model_config,
                                         prefix=prefix)
            _check_quantization(model)
            flags = _engines.bind(model, weights)
            for name in EXPORTED_MODEL_ATTRS:
                if name in flags:
                    setattr(model, name, bool(flags[name]))
            with weights_already_processed():
                process_weights_after_loading(model, model_config, target)
            _engines.finish(model)
        model.load_weights = _engines.refusing("vLLM cannot load in place", _SHARED)
        model.gpumem_weights = weights  # keeps them mapped
        if vllm_config.model_config.enable_sleep_mode and (
                vllm_config.model_config.sleep_mode_backend == "cumem"):
            vllm_config.model_config.sleep_mode_backend = "gpumem"
        return model.eval()

    def _load(self, vllm_config: Any, model_config: Any, prefix: str, target: Any
              ) -> Iterator[Tuple[str, Any]]:
        """Loads the model with vLLM's loader, and returns its memory; the model itself ends."""
        vllm_config.load_config = self._inner
        model = get_model_loader(self._inner).load_model(
            vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        _check_quantization(model)
        if target.type == "cpu" and any(each.numel() == 0 for each in model.parameters()):
            raise UnimplementedError("vLLM packs these weights for the CPU into memory of its "
                                     "libraries, which cannot be shared")
        return _engines.pack(model, target, attributes=False, extra=export_model_attrs(model))

    def _content_id(self, vllm_config: Any, model_config: Any, prefix: str) -> str:
        self.download_model(model_config)
        model = model_config.model_weights or model_config.model
        parallel = vllm_config.parallel_config
        facts = {
            "prefix": prefix, "model": model_config.compute_hash(),
            "configs": {name: getattr(vllm_config, name).compute_hash() for name in _CONFIGS},
            "convert": model_config.convert_type, "lora": vllm_config.lora_config is not None,
            "seed": model_config.seed if self._inner.load_format == "dummy" else None,
            "tensor": [get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()],
            "pipeline": [get_pp_group().rank_in_group, get_pp_group().world_size],
            "expert": parallel.enable_expert_parallel and parallel.data_parallel_rank,
            "load": [self._inner.load_format, self._inner.model_loader_extra_config,
                     self._inner.ignore_patterns],
            "environment": envs.compile_factors(),
            **_engines.gpu_of(_target(vllm_config, self.load_config))[1]}
        files = _engines.files_of(model, model_config.revision, self._inner.download_dir)
        return _engines.content_id(f"vllm {vllm.__version__}", files, facts,
                                   self._options.content_id)


def _target(vllm_config: Any, load_config: Any) -> Any:
    return torch.device(load_config.device or vllm_config.device_config.device)


def _refuse(vllm_config: Any, inner: Any) -> None:
    """Raises UnimplementedError if vLLM would write to weights, or keep them elsewhere."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    offload = vllm_config.offload_config
    wrong = [what for what, is_set in (
        ("expert load balancing (--enable-eplb)", parallel.enable_eplb),
        ("weight transfer (--weight-transfer-config)", vllm_config.weight_transfer_config),
        ("offloading of weights", offload.uva.cpu_offload_gb > 0
         or offload.prefetch.offload_group_size > 0),
        ("--sleep-preserve-parameter-names", model.sleep_preserve_parameter_names)) if is_set]
    if wrong:
        raise UnimplementedError(f"--load-format gpumem cannot serve {wrong[0]}: {_SHARED}")
    _engines.check_format(inner.load_format, parallel.world_size)


def _check_quantization(model: Any) -> None:
    """Raises UnimplementedError unless vLLM says that each method of quantisation can start from
    weights that were processed in another process."""
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, QuantizeMethodBase) and not method.supports_pre_processed_weights:
            raise UnimplementedError(
                f"vLLM's {type(method).__name__} ({name}) cannot use weights that another process "
                "has processed: use --load-format auto")


class SleepBackend(CuMemBackend):  # type: ignore[misc]
    """vLLM's sleep mode beside shared weights. They stay mapped at each level: they are not in
    vLLM's allocator. Level 2 keeps the other tensors of the model on the host as level 1 does,
    because no reload follows that would restore them."""

    def suspend(self, level: int = 1) -> None:
        """Frees the KV cache, and moves the memory of the process with the tag "weights" to the
        host."""
        del level
        super().suspend(1)


def register() -> None:
    """Registers the format; vLLM calls it in each of its processes (vllm.general_plugins)."""
    register_model_loader("gpumem")(ModelLoader)
    if "gpumem" not in SleepModeBackendFactory._registry:
        SleepModeBackendFactory.register_backend("gpumem", __name__, "SleepBackend")
