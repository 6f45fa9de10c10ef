# SPDX-License-Identifier: Apache-2.0
"""gpumem.torch.use(): all of PyTorch's memory is gpumem's in this process."""
import gc
import pickle

import pytest

import gpumem
from support import MIB, child

torch = pytest.importorskip("torch")
import gpumem.torch as adapter  # noqa: E402

POOL = adapter.use()


def test_tensors_lie_in_the_default_pool():
    x = torch.ones(MIB, device="cuda")
    assert POOL.find(x.data_ptr())[1] >= x.nbytes
    assert x.sum().item() == MIB


def test_memory_comes_back():
    gc.collect()
    before = POOL.stats().used_bytes
    x = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert POOL.stats().used_bytes == before + 100 * MIB
    del x
    assert POOL.stats().used_bytes == before


TRAINING = """
import torch

def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    model = model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(1)).cuda()
    y = x[:, :1] * 2
    for _ in range(50):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
"""


def test_a_model_learns_the_same():
    space = {}
    exec(TRAINING, space)
    mine = space["train"]()
    stock = float(child(TRAINING + "\nprint(train())"))
    assert mine < 1 and abs(mine - stock) <= 1e-2 * abs(stock), (mine, stock)


def test_several_streams():
    streams = [torch.cuda.Stream() for _ in range(4)]
    sums = []
    for i in range(400):
        with torch.cuda.stream(streams[i % 4]):
            x = torch.full((1 << 16,), i, dtype=torch.int64, device="cuda")
            sums.append((x * 2 + 1).sum())
    torch.cuda.synchronize()
    assert [s.item() for s in sums] == [(2 * i + 1) << 16 for i in range(400)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "int64"])
def test_share_live(dtype):
    x = torch.arange(100, device="cuda").to(getattr(torch, dtype))[10:20]
    torch.cuda.synchronize()
    ticket = pickle.dumps(adapter.share_live(x)).hex()
    said = child("""
        import pickle, sys, torch, gpumem, gpumem.torch
        x = gpumem.torch.from_array(gpumem.open(pickle.loads(bytes.fromhex(sys.argv[1]))))
        x = x.view(getattr(torch, sys.argv[2]))
        print([int(one) for one in x.tolist()])
    """, ticket, dtype)
    assert said.strip() == str(list(range(10, 20)))


def test_publishing_the_programs_own_tensors(name):
    x = torch.arange(1000, device="cuda")
    adapter.publish(name, x)
    assert adapter.attach(name).sum().item() == 499500


def test_the_pluggable_allocator_cannot_be_changed_later():
    with pytest.raises(RuntimeError):
        adapter.use()


def test_too_much_is_said_on_stderr():
    code = """
        import torch, gpumem.torch
        gpumem.torch.use()
        try:
            x = torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
            print("null" if x.data_ptr() == 0 else "memory")
        except RuntimeError as error:
            print("raised")
        print(torch.ones(10, device="cuda").sum().item())
    """
    said = child(code).split()
    assert said[0] in ("null", "raised") and said[1] == "10.0"
