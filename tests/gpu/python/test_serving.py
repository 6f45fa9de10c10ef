# SPDX-License-Identifier: Apache-2.0
"""gpumem.serving on a GPU: loaders, modules on mapped tensors, new versions, files."""
import gc
import struct

import numpy
import pytest

import gpumem
from support import MIB, child, eventually

torch = pytest.importorskip("torch")
from gpumem.serving import load_or_attach, push  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = ["float32", "float16", "bfloat16", "int8", "uint8", "int64", "bool", "complex64"] + [
    name for name in ("float8_e4m3fn", "float8_e5m2", "uint16") if hasattr(torch, name)]


def leased():
    """Returns the bytes that the tenant holds; memory kept for reuse does not count."""
    return sum(device.leased for device in gpumem.default_client().usage().devices)


def used():
    """Returns the bytes of the GPU that all processes use."""
    free, total = torch.cuda.mem_get_info() if DEVICE == "cuda" else (0, 0)
    return total - free


def test_the_loaders_memory_goes(name):
    torch.ones(1, device=DEVICE)
    size = 64 * MIB
    before = used()
    weights = load_or_attach(name, lambda: {
        str(number): torch.full((size // 4,), float(number), device=DEVICE) for number in range(4)},
        content_id="1")
    assert weights.loaded and leased() <= 4 * size + 2 * MIB
    if DEVICE == "cuda":
        assert torch.cuda.memory_reserved() < size
        assert used() - before < 5 * size
    after = used()
    again = load_or_attach(name, dict, content_id="1")
    assert not again.loaded and used() - after < 4 * MIB
    for number in range(4):
        assert again[str(number)].device.type == DEVICE
        assert (again[str(number)] == number).all()
        assert weights[str(number)][-1].item() == number


def test_tensors_one_after_another(name):
    buffer = torch.zeros(MIB, device=DEVICE)
    tied = torch.arange(MIB, device=DEVICE, dtype=torch.float32)

    def loader():
        yield "one", tied
        for number in range(8):
            buffer.fill_(number)
            yield str(number), buffer
        for dtype in TYPES:
            yield dtype, (torch.arange(24, device=DEVICE) % 2).float().to(getattr(torch, dtype))
        yield "other", tied
        yield "none", tied[:0]
        yield "scalar", torch.tensor(2.5, device=DEVICE)
        yield "transposed", tied.reshape(1024, 1024).t()

    weights = load_or_attach(name, loader, content_id="1")
    assert all((weights[str(number)] == number).all() for number in range(8))
    assert weights["one"].data_ptr() == weights["other"].data_ptr()
    assert torch.equal(weights["transposed"], tied.reshape(1024, 1024).t())
    assert weights["scalar"].shape == () and weights["scalar"].item() == 2.5
    for dtype in TYPES:
        assert weights[dtype].dtype == getattr(torch, dtype)
        assert weights[dtype].to(torch.complex64).real.cpu().tolist() == [0, 1] * 12, dtype


def make():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64),
                                torch.nn.Linear(64, 64, bias=False))
    model[2].weight = model[0].weight
    return model.eval()


def test_a_module_follows_the_versions(name):
    torch.manual_seed(1)
    first, second = make().to(DEVICE), make().to(DEVICE)
    x = torch.randn(8, 64, device=DEVICE)
    weights = load_or_attach(name, lambda: first.state_dict(), content_id="1")
    with torch.device("meta"):
        model = make()
    weights.bind(model)
    assert model[2].weight is model[0].weight
    with torch.no_grad():
        assert torch.equal(model(x), first(x))
        push(name, second.state_dict())
        assert torch.equal(model(x), first(x))
        parameter = model[0].weight
        assert weights.update() and model[0].weight is parameter
        assert torch.equal(model(x), second(x))
    del parameter
    gc.collect()
    eventually(lambda: leased() <= 2 * MIB, "the first version has ended")


def test_a_worker_that_is_killed_attaches_again(name):
    code = """
        import os, signal, sys, torch
        from gpumem.serving import load_or_attach
        device = "cuda" if torch.cuda.is_available() else "cpu"
        weights = load_or_attach(sys.argv[1], lambda: {"w": torch.ones(1 << 20, device=device)},
                                 content_id="1")
        print(weights.loaded, weights["w"].sum().item(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert child(code, name, fails=True) == "True 1048576.0\n"
    assert child(code, name, fails=True) == "False 1048576.0\n"


def test_a_write_faults(name):
    load_or_attach(name, lambda: {"w": torch.ones(1 << 20, device=DEVICE)}, content_id="1")
    said = child("""
        import sys, torch
        from gpumem.serving import load_or_attach
        weights = load_or_attach(sys.argv[1], dict, content_id="1")
        print("attached", flush=True)
        weights["w"].fill_(2)
        torch.cuda.synchronize()
        print("written", flush=True)
    """, name, fails=True)
    assert said == "attached\n"
    assert (load_or_attach(name, dict, content_id="1")["w"] == 1).all()


def test_parts_of_ranks(name):
    whole = torch.arange(64.0, device=DEVICE).reshape(8, 8)
    weights = load_or_attach(name, lambda: {"q.weight": whole, "o.weight": whole}, content_id="1")
    for rank in range(2):
        parts = weights.slice((rank, 2), {"q.*": 0, "o.*": 1})
        assert torch.equal(parts["q.weight"], whole.chunk(2)[rank])
        assert torch.equal(parts["o.weight"], whole.chunk(2, dim=1)[rank])
        assert parts["q.weight"].is_contiguous()


def test_files(name, tmp_path):
    array = numpy.arange(5 * MIB, dtype="int32")
    numpy.savez(tmp_path / "a.npz", plain=array, none=array[:0])
    numpy.savez_compressed(tmp_path / "b.npz", packed=array)
    torch.save({"w": torch.from_numpy(array)}, tmp_path / "c.pt")
    gguf = b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"w" + struct.pack(
        "<IQIQ", 1, array.size, 26, 0)
    (tmp_path / "d.gguf").write_bytes(gguf + bytes(-len(gguf) % 32) + array.tobytes())
    expected = torch.from_numpy(array)
    for paths, key in ((["a.npz", "b.npz"], "packed"), (["a.npz"], "plain"), (["c.pt"], "w"),
                       (["d.gguf"], "w")):
        weights = load_or_attach(name, [tmp_path / path for path in paths], content_id=paths[-1] + key)
        assert weights.loaded and weights[key].device.type == DEVICE
        assert torch.equal(weights[key].cpu(), expected), key


def test_what_has_no_room_leaves_nothing(name):
    tensor = torch.ones(1, device=DEVICE).expand(1 << 40)
    with pytest.raises(gpumem.Error):
        load_or_attach(name, lambda: {"w": tensor}, content_id="1")
    eventually(lambda: leased() == 0, "all is given back")
    assert load_or_attach(name, lambda: {"w": torch.ones(3, device=DEVICE)}, content_id="1").loaded
