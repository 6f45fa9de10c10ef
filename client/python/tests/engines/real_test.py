# SPDX-License-Identifier: Apache-2.0
"""The plug-ins with vLLM and SGLang themselves, on the CPU, where they are installed. The model is
a Llama of two small layers with random weights. tests/gpu/python/test_engines.py is for GPUs.

vLLM has to be a build for the CPU. SGLang's loader runs on the CPU; its kernels do not.
"""
import importlib.util
import json

import pytest
from serving_fixtures import REAL, _daemon, finish, start  # noqa: F401

TINY = """
import sys, torch, transformers
torch.manual_seed(int(sys.argv[2]))
transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    tie_word_embeddings=sys.argv[3] == "tied", dtype="float32")).save_pretrained(sys.argv[1])
"""
SAID = """
import json
def tell(model, **more):
    maps = [line.split()[:2] for line in open("/proc/self/maps")]
    def access(tensor):
        return next(mode for place, mode in maps if int(place.split("-")[0], 16)
                    <= tensor.data_ptr() < int(place.split("-")[1], 16))
    weights = getattr(model, "gpumem_weights", None)
    print("SAID " + json.dumps(dict(
        more, loaded=None if weights is None else weights.loaded,
        parameters=sorted({access(each) for each in model.parameters()}),
        buffers=sorted({access(each) for each in model.buffers()}),
        classes=sorted({type(each).__name__ for each in model.parameters()}),
        sums={name: each.double().sum().item() for name, each in
              model.named_parameters(remove_duplicate=False)})))
"""
VLLM = SAID + """
import os, sys
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")
from gpumem import _plugins
import vllm._custom_ops
vllm._custom_ops._supports_onednn = False  # else its libraries hold the weights
_plugins.vllm()
engine = vllm.LLM(sys.argv[1], skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
                  max_model_len=64, load_format=sys.argv[2])
answer, = engine.generate([{"prompt_token_ids": [1, 2, 3, 4, 5]}], vllm.SamplingParams(
    max_tokens=8, temperature=0, detokenize=False))
core = engine.llm_engine.engine_core.engine_core
tell(core.model_executor.driver_worker.worker.model_runner.model,
     tokens=list(answer.outputs[0].token_ids))
"""
SGLANG = SAID + """
import os, sys
from sglang.srt.server_args import ServerArgs
from sglang.srt.plugins.hook_registry import HookRegistry
from gpumem import _plugins
_plugins.sglang()
HookRegistry.apply_hooks()
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.model_loader.loader import get_model_loader
from sglang.srt.runtime_context import SpawnRanks, publish
extra = '{"gpumem": {}}' if sys.argv[2] == "gpumem" else "{}"
arguments = ServerArgs(model_path=sys.argv[1], device="cpu", skip_tokenizer_init=True,
                       dtype="float32", model_loader_extra_config=extra)
publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
initialize_moe_config()
config = ModelConfig(model_path=sys.argv[1], dtype="float32")
init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo",
                             distributed_init_method="file://" + sys.argv[3])
initialize_model_parallel()
initialize_dp_attention(arguments)
loader = get_model_loader(LoadConfig(model_loader_extra_config=extra), config)
tell(loader.load_model(model_config=config, device_config=DeviceConfig("cpu", 0)),
     preloaded=loader.preloaded_weights_bytes)
"""


def needs(name):
    """Returns a marker that skips a test where an engine, or a part that it needs, is missing."""
    missing = [each for each in ("torch", "transformers", name)
               if importlib.util.find_spec(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture(name="model", scope="module", params=["untied", "tied"])
def _model(request, daemon, tmp_path_factory):
    if not REAL:
        pytest.skip("not installed: torch")
    made = []
    for seed in ("0", "1"):
        made.append(str(tmp_path_factory.mktemp("tiny")))
        finish(start(TINY, made[-1], seed, request.param, runtime_dir=daemon.runtime_dir))
    return made


def run(code, daemon, tmp_path, model, form):
    """Returns what a process said of its model."""
    sync = tmp_path / "sync"
    sync.unlink(missing_ok=True)
    out = finish(start(code, model, form, str(sync), runtime_dir=daemon.runtime_dir))
    return json.loads(next(line for line in out.split("\n") if line.startswith("SAID "))[5:])


def check(runs):
    """runs: of one model by the engine's loader, twice with the plug-in, and another model."""
    plain, first, second, other = runs
    assert [each["loaded"] for each in runs] == [None, True, False, True]
    for each in (first, second):
        assert each["sums"] == plain["sums"] and each["classes"] == plain["classes"]
        assert each["parameters"] == ["r--s"]  # mapped, and read-only
        assert each["buffers"] == plain["buffers"] != ["r--s"]
    assert other["sums"] != plain["sums"]


@needs("vllm")
def test_vllm(daemon, model, tmp_path):
    runs = [run(VLLM, daemon, tmp_path, folder, form) for folder, form in
            ((model[0], "auto"), (model[0], "gpumem"), (model[0], "gpumem"), (model[1], "gpumem"))]
    check(runs)
    assert runs[1]["tokens"] == runs[2]["tokens"] == runs[0]["tokens"]


@needs("sglang")
def test_sglang(daemon, model, tmp_path):
    runs = [run(SGLANG, daemon, tmp_path, folder, form) for folder, form in
            ((model[0], "auto"), (model[0], "gpumem"), (model[0], "gpumem"), (model[1], "gpumem"))]
    check(runs)
    assert [each["preloaded"] > 0 for each in runs] == [False, False, True, False]
