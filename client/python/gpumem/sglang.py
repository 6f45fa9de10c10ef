# SPDX-License-Identifier: Apache-2.0
"""SGLang's weights in published memory.

    python -m sglang.launch_server --model-path MODEL --model-loader-extra-config '{"gpumem": {}}'

The first worker of a node loads the model as SGLang does, and publishes the weights. Every other
worker with the same weights, and every restart, maps them. The package's entry point hooks SGLang's
choice of a loader in each process. See docs/how-to/serve-with-engines.md.

The object "gpumem" has options. "name" is the publication's prefix ("sglang"). "wait" is in
seconds, for another worker that loads (no limit). "expire_after" is how many seconds weights stay
without a worker (for ever). "content_id" names the files' content, in place of their hashes.
--load-format and the other keys are for the first worker.
"""
from __future__ import annotations

import copy
import dataclasses
import logging
import os
import re
from typing import Any, Callable, Dict, Iterator, Tuple

import sglang  # type: ignore[import]
import torch  # type: ignore[import]
from sglang.srt.constants import (  # type: ignore[import]
    GPU_MEMORY_ALL_TYPES, GPU_MEMORY_TYPE_WEIGHTS)
from sglang.srt.managers.io_struct import (  # type: ignore[import]
    BeginWeightUpdateReqOutput, ReleaseMemoryOccupationReqOutput, ResumeMemoryOccupationReqOutput)
from sglang.srt.model_loader import loader as loaders  # type: ignore[import]
from sglang.srt.model_loader.utils import set_default_torch_dtype  # type: ignore[import]
from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # type: ignore[import]
from sglang.srt.runtime_context import get_exec, get_model, get_parallel  # type: ignore[import]
from sglang.srt.weight_cache.ipc_loader import IpcModelLoader  # type: ignore[import]
from sglang.srt.weight_cache.protocol import (  # type: ignore[import]
    check_ipc_quant_support, get_quant_method_name)

from . import _engines
from .errors import UnimplementedError

__all__ = ["ModelLoader", "register"]

_LOG = logging.getLogger("sglang.srt.gpumem")
_SHARED = "the weights are shared with other processes, and mapped read-only. Start another " \
          "server for new weights, or leave \"gpumem\" out of --model-loader-extra-config"
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "moe_dp_rank", "attn_tp_rank", "attn_cp_rank")
# Settings of a server that do not change its weights.
_NO_MATTER = re.compile(r"port|addr|timeout|_ip$|log|socket|watermark|cuda_graph|balance_method|"
                        r"model_path|download_dir|^weight_|run_id|node_rank|extra_config", re.I)


class ModelLoader(loaders.BaseModelLoader):  # type: ignore[misc]
    """The loader for servers with "gpumem" in --model-loader-extra-config."""

    def __init__(self, load_config: Any, choose: Callable[[Any, Any], Any],
                 model_config: Any) -> None:
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config)
        options = dict(extra.pop("gpumem") or {})
        self._options = _engines.Options.take(options, "sglang")
        if options:
            raise ValueError(f"gpumem has no option {sorted(options)[0]!r} for SGLang")
        self._inner = dataclasses.replace(load_config, model_loader_extra_config=extra)
        self._loader = choose(self._inner, model_config)

    def download_model(self, model_config: Any) -> None:
        """Downloads the files, as SGLang's loader does."""
        self._loader.download_model(model_config)

    def load_model(self, *, model_config: Any, device_config: Any) -> Any:
        """Returns the model, with the published weights: loads and publishes them if need be.

        Raises UnimplementedError if the model or a setting needs weights of its process.
        """
        self._refuse(model_config)
        target = torch.device(device_config.device)
        content = self._content_id(model_config, target)
        before = _engines.resident(self._options.name_of(content))
        private = copy.deepcopy(model_config)  # loading may change it
        weights = self._options.weights(
            content, target, lambda: self._load(private, device_config, target), _LOG)
        self.preloaded_weights_bytes = 0 if weights.loaded else before
        quantization = loaders._get_quantization_config(model_config, self._inner)
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                model = loaders._initialize_model(model_config, self._inner, quantization)
        _engines.bind(model, weights)
        _engines.finish(model)
        # Modules keep views of parameters, made when they had no memory.
        IpcModelLoader._rebuild_stale_views(model)
        loaders.PreshardedModelLoader._rebind_parameter_aliases(model)
        model.load_weights = _engines.refusing("SGLang cannot load in place", _SHARED)
        model.gpumem_weights = weights  # keeps them mapped
        return model.eval()

    def _load(self, model_config: Any, device_config: Any, target: Any
              ) -> Iterator[Tuple[str, Any]]:
        """Loads the model with SGLang's loader, and returns its memory; the model itself ends."""
        model = self._loader.load_model(model_config=model_config, device_config=device_config)
        return _engines.pack(model, target, attributes=True)

    def _refuse(self, model_config: Any) -> None:
        """Raises UnimplementedError if SGLang would write to weights, or keep them elsewhere;
        and SGLang's error if it has not checked that the quantisation can be shared."""
        execution = get_exec()
        wrong = [what for what, is_set in (
            ("--weight-cache-mode", get_model().weight_cache_mode != "off"),
            ("--enable-eplb", execution.moe.enable_eplb),
            ("--cpu-offload-gb", execution.offload.cpu_offload_gb > 0),
            ("--offload-group-size", execution.offload.offload_group_size > 0),
            ("--startup-weight-load-mode", get_model().is_startup_weight_load_overlap),
            # They keep numbers that are no tensors.
            ("models that derive from their weights (post_load_weights)", hasattr(
                loaders.get_model_architecture(model_config)[0], "post_load_weights"))) if is_set]
        if wrong:
            raise UnimplementedError(f"gpumem cannot serve {wrong[0]}: {_SHARED}")
        quantization = getattr(model_config.hf_config, "quantization_config", None)
        check_ipc_quant_support(get_quant_method_name(model_config.quantization or quantization),
                                quantization, where="gpumem")
        _engines.check_format(str(getattr(self._inner.load_format, "value", "")),
                              get_parallel().tp_size * get_parallel().pp_size)

    def _content_id(self, model_config: Any, target: Any) -> str:
        self.download_model(model_config)
        parallel = get_parallel()
        facts = {
            "model": _facts(get_model()), "exec": _facts(get_exec()),
            "parallel": _facts(parallel._config),
            "ranks": {name: getattr(parallel, name) for name in _RANKS},
            "config": model_config.hf_config.to_json_string(), "dtype": str(model_config.dtype),
            "quantization": str(model_config.quantization),
            "load": [str(self._inner.load_format), self._inner.model_loader_extra_config,
                     self._inner.draft_model_idx],
            "environment": {name: value for name, value in os.environ.items()
                            if name.startswith("SGLANG_") and not _NO_MATTER.search(name)},
            **_engines.gpu_of(target)[1]}
        files = _engines.files_of(model_config.model_path, model_config.revision,
                                  self._inner.download_dir)
        return _engines.content_id(f"sglang {sglang.__version__}", files, facts,
                                   self._options.content_id)


def _facts(bag: Any) -> Dict[str, Any]:
    """Returns the settings of a part of SGLang's configuration."""
    found: Dict[str, Any] = {name: re.sub(" at 0x[0-9a-f]+", "", repr(value))
             for name, value in bag._fields.items() if not _NO_MATTER.search(name)}
    found.update({name: _facts(sub) for name, sub in bag._subs.items()})
    return found


def _choose(original: Callable[..., Any], load_config: Any, model_config: Any = None) -> Any:
    extra = getattr(load_config, "model_loader_extra_config", None)
    if isinstance(extra, dict) and "gpumem" in extra:
        return ModelLoader(load_config, original, model_config)
    return original(load_config, model_config)


def _unless_shared(model_of: Callable[[Any], Any], answer: Callable[..., Any]
                   ) -> Callable[..., Any]:
    """Returns a hook that answers in place of a call if the model's weights are shared."""
    def hook(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(model_of(owner), "gpumem_weights"):
            return answer(original, owner, *args, **kwargs)
        return original(owner, *args, **kwargs)

    return hook


def _all_but_weights(output: Callable[[], Any]) -> Callable[..., Any]:
    """Returns an answer that releases or resumes other memory alone. output: if there is none."""
    def answer(original: Callable[..., Any], manager: Any, request: Any) -> Any:
        request.tags = [tag for tag in request.tags or GPU_MEMORY_ALL_TYPES
                        if tag != GPU_MEMORY_TYPE_WEIGHTS]
        return original(manager, request) if request.tags else output()

    return answer


def register() -> None:
    """Registers the hooks; SGLang calls it in each of its processes (sglang.srt.plugins)."""
    refused = f"gpumem cannot update weights in place: {_SHARED}"
    hooks = {"model_loader.loader.get_model_loader": _choose}
    updater = "model_executor.model_runner_components.weight_updater.WeightUpdater"
    for name in ("update_weights_from_disk", "load_weights_from_distributed",
                 "update_weights_from_tensor", "update_weights_from_ipc"):
        hooks[f"{updater}.{name}"] = _unless_shared(lambda updater: updater.get_model(),
                                                    lambda *_, **__: (False, refused))
    manager = "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    answers: Dict[str, Callable[..., Any]] = {
        "begin_weight_update":
            lambda *_: BeginWeightUpdateReqOutput(success=False, message=refused),
        "release_memory_occupation": _all_but_weights(ReleaseMemoryOccupationReqOutput),
        "resume_memory_occupation": _all_but_weights(ResumeMemoryOccupationReqOutput)}
    for name, answer in answers.items():
        hooks[f"{manager}.{name}"] = _unless_shared(
            lambda manager: manager.tp_worker.model_runner.model, answer)
    for name, hook in hooks.items():
        HookRegistry.register(f"sglang.srt.{name}", hook, HookType.AROUND)
