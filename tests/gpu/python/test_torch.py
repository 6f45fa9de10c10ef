# SPDX-License-Identifier: Apache-2.0
"""gpumem.torch beside PyTorch's own allocator: MemPool, publications, sharing."""
import gc
import pickle

import pytest

import gpumem
from support import MIB, child

torch = pytest.importorskip("torch")
import gpumem.torch as adapter  # noqa: E402

FLOAT8 = [name for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]


def test_mem_pool_for_a_part_of_a_program():
    pool = gpumem.Pool.default(0)
    outside = torch.arange(8 * MIB, device="cuda")
    assert pool.stats().used_bytes == 0
    with adapter.using() as mem_pool:
        inside = torch.arange(8 * MIB, device="cuda")
    assert pool.stats().used_bytes >= inside.nbytes
    assert torch.equal(inside, outside)
    after = torch.ones(10, device="cuda")
    assert after.sum().item() == 10
    del inside
    torch.cuda.synchronize()
    del mem_pool
    gc.collect()
    torch.cuda.empty_cache()
    assert pool.stats().used_bytes == 0


def test_mem_pool_raises_where_memory_is_denied():
    with pytest.raises(torch.OutOfMemoryError):
        with adapter.using():
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    assert torch.ones(10, device="cuda").sum().item() == 10


ALL = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64",
       "bool", "complex64", "complex128"] + FLOAT8


@pytest.mark.parametrize("dtype", ALL)
def test_publish_and_attach_each_dtype(name, dtype):
    wanted = getattr(torch, dtype)
    x = (torch.arange(24, device="cuda").reshape(4, 6) % 7).to(torch.float32).to(wanted)
    adapter.publish(name, {"x": x})
    seen = adapter.attach(name)
    assert seen["x"].dtype == wanted and seen["x"].shape == (4, 6) and seen["x"].is_cuda
    assert torch.equal(seen["x"].view(torch.uint8) if dtype in FLOAT8 else seen["x"],
                       x.view(torch.uint8) if dtype in FLOAT8 else x)


def test_attach_makes_no_copy(name):
    adapter.publish(name, {"x": torch.ones(16 * MIB, device="cuda")})
    one = adapter.attach(name, writable=True)["x"]
    other = adapter.attach(name)["x"]
    one.fill_(7)
    torch.cuda.synchronize()
    assert other.sum(dtype=torch.float64).item() == 7 * 16 * MIB
    before = torch.cuda.memory_allocated()
    third = adapter.attach(name)["x"]
    assert torch.cuda.memory_allocated() == before and third[5].item() == 7


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(100, 32)
        self.body = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(),
                                        torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 32))
        self.head = torch.nn.Linear(32, 100, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.register_buffer("scale", torch.tensor(3.0), persistent=False)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))) * self.scale


def test_a_module_in_another_process(name):
    torch.manual_seed(3)
    model = Model().cuda().eval().to(torch.bfloat16)
    tokens = torch.arange(50, device="cuda")
    with torch.no_grad():
        expected = model(tokens).float().sum().item()
    adapter.publish(name, model, metadata={"step": 17})
    del model
    code = __import__("inspect").getsource(Model)
    said = child("import torch, sys, gpumem.torch\n" + code + """
with torch.device("meta"):
    model = Model().to(torch.bfloat16).eval()
torch.ones(1, device="cuda")
before = torch.cuda.memory_allocated()
gpumem.torch.attach(sys.argv[1], model)
more = torch.cuda.memory_allocated() - before
assert model.head.weight is model.embed.weight, "tied weights stay tied"
assert not any(p.is_meta for p in model.parameters()) and not model.scale.is_meta
with torch.no_grad():
    print(model(torch.arange(50, device="cuda")).float().sum().item())
print(more == 0)
print(gpumem.torch.attach(sys.argv[1]).metadata["step"])
""", name)
    assert said.split()[1:] == ["True", "17"]
    assert abs(float(said.split()[0]) - expected) <= 1e-2 * max(1, abs(expected))


def test_state_dict_and_load_state_dict(name):
    model = torch.nn.Linear(10, 10).cuda()
    adapter.publish(name, model.state_dict())
    other = torch.nn.Linear(10, 10).cuda()
    other.load_state_dict(adapter.attach(name).tensors)
    assert torch.equal(other.weight, model.weight)


def test_a_module_that_does_not_fit(name):
    adapter.publish(name, torch.nn.Linear(10, 10).cuda())
    with pytest.raises(gpumem.NotFoundError):
        adapter.attach(name, torch.nn.Linear(10, 10, bias=False))
    with pytest.raises(gpumem.InvalidArgumentError):
        adapter.attach(name, torch.nn.Linear(10, 11))
    model = torch.nn.Linear(10, 10, bias=False)
    adapter.attach(name, model, strict=False)
    assert model.weight.is_cuda


def test_a_gradient_step_on_a_writable_module(name):
    adapter.publish(name, torch.nn.Linear(4, 4).cuda())
    model = adapter.attach(name, torch.nn.Linear(4, 4), writable=True)
    before = adapter.attach(name)["weight"].clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    assert not torch.equal(adapter.attach(name)["weight"], before)


def test_a_shared_tensor_needs_no_live_producer():
    said = child("""
        import pickle, torch, gpumem.torch
        x = torch.arange(1000, device="cuda").to(torch.bfloat16)
        print(pickle.dumps(gpumem.torch.share(x)).hex())
    """)
    shared = pickle.loads(bytes.fromhex(said.strip()))
    tensor = shared.open()
    assert tensor.dtype == torch.bfloat16 and tensor[10].item() == 10
    shared.unshare()
    with pytest.raises(gpumem.NotFoundError):
        shared.open()
    assert tensor[20].item() == 20  # a holder keeps it


def test_non_contiguous_tensors(name):
    x = torch.arange(24, device="cuda").reshape(4, 6)
    adapter.publish(name, {"t": x.t(), "every": x[:, ::2], "none": x[:0]})
    seen = adapter.attach(name)
    assert torch.equal(seen["t"], x.t()) and torch.equal(seen["every"], x[:, ::2])
    assert seen["none"].shape == (0, 6)


def test_tensors_of_the_cpu_go_to_the_gpu(name):
    adapter.publish(name, {"x": torch.arange(100.0)})
    assert adapter.attach(name)["x"].is_cuda and adapter.attach(name)["x"].sum().item() == 4950
