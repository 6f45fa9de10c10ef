# SPDX-License-Identifier: Apache-2.0
"""The plug-ins for vLLM and SGLang: their common parts on a GPU, and the engines where they are
installed. client/python/tests/engines has what needs no GPU."""
import json
import os

import pytest

import gpumem
from support import MIB, child, eventually

torch = pytest.importorskip("torch")
from gpumem import _engines  # noqa: E402
from gpumem.serving import load_or_attach  # noqa: E402

# A model with what quantisation schemes leave behind: column-major float8, tied weights, a view.
MODEL = """
import gc, json, sys, time
import torch
from gpumem import _engines
from gpumem.serving import load_or_attach

def make(layers, width):
    torch.manual_seed(0)
    model = torch.nn.Module()
    for number in range(layers):
        layer = torch.nn.Module()
        plain = torch.randn(width, width).to(torch.float8_e4m3fn).cuda()
        layer.weight = torch.nn.Parameter(plain.t(), requires_grad=False)
        layer.scale = torch.nn.Parameter(torch.ones(1, device="cuda"), requires_grad=False)
        layer.register_buffer("cache", torch.arange(8.0, device="cuda"))
        layer.register_buffer("on_host", torch.arange(2.0))
        model.add_module(str(number), layer)
    model.add_module("tied", torch.nn.Module())
    model.tied.weight = getattr(model, "0").weight
    return model.eval()

def bound(name, layers, width):
    target = torch.device("cuda", 0)
    weights = load_or_attach(
        name, lambda: _engines.pack(make(layers, width), target, attributes=False),
        device=_engines.gpu_of(target)[0], content_id=name)
    with torch.device("meta"):
        model = torch.nn.Module()
        for number in range(layers):
            layer = torch.nn.Module()
            layer.weight = torch.nn.Parameter(torch.empty(1), requires_grad=False)
            model.add_module(str(number), layer)
        model.add_module("tied", torch.nn.Module())
    _engines.bind(model, weights)
    _engines.finish(model)
    return model, weights

def total(model):
    return sum(each.float().sum().item() for each in model.parameters())
"""


@pytest.fixture(name="space")
def _space():
    space = {}
    exec(MODEL, space)
    return space


def test_a_model_comes_back_in_other_processes(space, name):
    model, weights = space["bound"](name, 4, 512)
    assert weights.loaded
    layer = getattr(model, "0")
    assert layer.weight.stride() == (1, 512) and layer.weight.dtype is torch.float8_e4m3fn
    assert model.tied.weight is layer.weight and layer.on_host.device.type == "cpu"
    plain = space["make"](4, 512)
    assert torch.equal(layer.weight.float(), getattr(plain, "0").weight.float())
    said = child(MODEL + """
model, weights = bound(sys.argv[1], 4, 512)
getattr(model, "0").cache.fill_(5)  # buffers are the process's own
print(json.dumps([weights.loaded, total(model)]))
""", name)
    loaded, total = json.loads(said)
    assert not loaded and total == pytest.approx(space["total"](plain))
    assert layer.cache.tolist() == list(range(8))
    del model, layer, weights


def test_the_first_load_does_not_hold_all_of_it_twice(name):
    """A model of 8 GiB: at the peak the GPU holds it once, and the copies in flight."""
    said = json.loads(child(MODEL + """
model = make(1, 512)
del model
gc.collect()
torch.cuda.empty_cache()
before = torch.cuda.mem_get_info()[0]
lowest = before
original = _engines._stream

def watched(*arguments):
    global lowest
    for pair in original(*arguments):
        lowest = min(lowest, torch.cuda.mem_get_info()[0])
        yield pair
        lowest = min(lowest, torch.cuda.mem_get_info()[0])

_engines._stream = watched
model, weights = bound(sys.argv[1], 32, 16384)
gc.collect()
torch.cuda.empty_cache()
print(json.dumps([weights.nbytes, before - lowest, before - torch.cuda.mem_get_info()[0]]))
""", name, timeout=280))
    nbytes, peak, after = said
    print(f"{nbytes / 2**30:.1f} GiB of weights: {peak / 2**30:.1f} GiB at the peak, "
          f"{after / 2**30:.1f} GiB after it")
    assert nbytes >= 8 << 30 and peak < nbytes + (5 << 30) and after < nbytes + (1 << 30)


def test_the_time_to_attach(name):
    code = MODEL + """
layers, width = map(int, sys.argv[2:])
torch.ones(1, device="cuda")
import gpumem
gpumem.default_client()
began = time.monotonic()
model, weights = bound(sys.argv[1], layers, width)
torch.cuda.synchronize()
print(json.dumps([weights.loaded, weights.nbytes, time.monotonic() - began, total(model)]))
"""
    first, second = [json.loads(child(code, name, 32, 8192, timeout=280)) for _ in range(2)]
    for what, (_, nbytes, seconds, _) in (("load and publish", first), ("attach", second)):
        print(f"{what} {nbytes / 2**30:.1f} GiB in 32 layers: {seconds * 1e3:.0f} ms")
    assert first[0] and not second[0] and first[3] == second[3]
    assert second[2] < first[2]


def test_a_graph_over_mapped_weights(space, name):
    model, weights = space["bound"](name, 2, 256)
    x = torch.ones(16, 256, device="cuda")
    out = torch.empty(16, 256, device="cuda")

    def step():
        out.copy_(x @ getattr(model, "0").weight.to(torch.float32) + getattr(model, "1").scale)

    step()
    torch.cuda.synchronize()
    wanted = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)
    del model, weights


def test_a_write_to_weights_faults(name):
    child(MODEL + """
model, weights = bound(sys.argv[1], 1, 256)
getattr(model, "0").scale.fill_(5)
torch.cuda.synchronize()
""", name, fails=True)


def test_facts_of_a_gpu():
    device, facts = _engines.gpu_of(torch.device("cuda", 0))
    assert device == facts["device"] and device.startswith(("GPU-", "MIG-"))
    assert device in [each.uuid for each in gpumem.default_client().devices()]
    assert facts["capability"] == torch.cuda.get_device_capability(0)
    json.dumps(facts)


# ---- The engines ---------------------------------------------------------------------------------

TINY = """
import sys, torch, transformers
torch.manual_seed(0)
transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=512,
    dtype="bfloat16")).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""
# The package's entry point registers the plug-in in each process of the engine.
VLLM = """
import json, sys, time
import vllm
def main():
    began = time.monotonic()
    engine = vllm.LLM(sys.argv[1], skip_tokenizer_init=True, max_model_len=128,
                      gpu_memory_utilization=0.3, enable_sleep_mode=True, load_format=sys.argv[2])
    began = time.monotonic() - began
    def tokens():
        answer, = engine.generate([{"prompt_token_ids": [1, 2, 3, 4, 5]}], vllm.SamplingParams(
            max_tokens=8, temperature=0, detokenize=False))
        return list(answer.outputs[0].token_ids)
    said = [tokens()]
    for level in (1, 2) if sys.argv[2] == "gpumem" else (1,):
        engine.sleep(level)
        engine.wake_up()
        engine.reset_prefix_cache()
        said.append(tokens())
    print("SAID " + json.dumps([began, said]))
if __name__ == "__main__":
    main()
"""
SGLANG = """
import json, sys, time
import sglang
def main():
    more = {"model_loader_extra_config": '{"gpumem": {}}'} if sys.argv[2] == "gpumem" else {}
    began = time.monotonic()
    engine = sglang.Engine(model_path=sys.argv[1], skip_tokenizer_init=True,
                           mem_fraction_static=0.3, enable_memory_saver=True, **more)
    began = time.monotonic() - began
    def tokens():
        return engine.generate(input_ids=[1, 2, 3, 4, 5], sampling_params={
            "max_new_tokens": 8, "temperature": 0})["output_ids"]
    said = [tokens()]
    if more:
        engine.release_memory_occupation()
        engine.resume_memory_occupation()
        said.append(tokens())
    print("SAID " + json.dumps([began, said]))
    engine.shutdown()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine(engine, tmp_path):
    """vLLM and SGLang as they are installed: the same tokens with their loader, with the plug-in's
    first load, with an attachment, and after each sleep."""
    pytest.importorskip(engine)
    pytest.importorskip("transformers")
    model, script = str(tmp_path / "tiny"), tmp_path / "engine.py"
    child(TINY, model)
    script.write_text(VLLM if engine == "vllm" else SGLANG)
    seen = []
    for form in ("auto", "gpumem", "gpumem"):
        out = child("import runpy, sys; sys.argv = sys.argv[1:]; "
                    "runpy.run_path(sys.argv[0], run_name='__main__')", script, model, form,
                    timeout=600, environment={"HF_HUB_OFFLINE": "1"})
        seconds, said = json.loads(out.split("SAID ")[1].split("\n")[0])
        print(f"{engine} with {form}: started in {seconds:.1f} s")
        seen += said
    assert all(each == seen[0] for each in seen), seen
    client = gpumem.default_client()
    found = [info for info in client.publications(client.tenant)
             if info.name.startswith(f"{engine}-")]
    assert len(found) == 1 and found[0].version == 1, found
    eventually(lambda: client.publications(client.tenant)[0].attached_sessions == 0, "all ended")
    client.unpublish(found[0].name)
    assert os.path.isdir(model) and found[0].nbytes >= MIB
