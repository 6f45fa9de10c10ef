# SPDX-License-Identifier: Apache-2.0
"""gpumem.torch over the host backend, with a stand-in for PyTorch that is made of NumPy."""
import ctypes
import gc
import importlib
import json
import pickle

import gpumem
import numpy as np
import pytest
from conftest import charged, daemon_for_fakes, eventually, run_python
from gpumem import _gpumem


@pytest.fixture(scope="module", name="daemon")
def _daemon():
    with daemon_for_fakes() as daemon:
        yield daemon


@pytest.fixture(name="adapter")
def _adapter(daemon):
    del daemon
    adapter = importlib.import_module("gpumem.torch")
    yield adapter
    client = gpumem.default_client()
    for info in client.publications(client.tenant):
        client.unpublish(info.name)
    gc.collect()
    eventually(lambda: charged(client) == 0, "all is given back")


@pytest.fixture(name="torch")
def _torch(adapter):
    del adapter
    return importlib.import_module("torch")


def some(torch, name, shape=(4, 6)):
    kind = getattr(torch, name)
    return torch.Tensor((np.arange(np.prod(shape)) % 2 * 3).reshape(shape).astype(kind.storage),
                        kind)


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "int16", "int32",
                                  "int64", "uint8", "bool", "complex64", "complex128", "bfloat16",
                                  "float8_e4m3fn"])
def test_each_dtype_comes_back(adapter, torch, name):
    tensor = some(torch, name)
    adapter.publish("one", {"x": tensor, "other": some(torch, "float32", (3,))})
    attached = adapter.attach("one")
    assert attached["x"].dtype is tensor.dtype and attached["x"].shape == (4, 6)
    assert np.array_equal(attached["x"].array, tensor.array)
    assert attached["x"].data_ptr() % 512 == 0
    assert np.array_equal(attached["other"].array, [0, 3, 0])


def test_a_tensor_alone(adapter, torch):
    adapter.publish("alone", some(torch, "int64"))
    assert np.array_equal(adapter.attach("alone").array, some(torch, "int64").array)


def test_attaching_makes_no_copy(adapter, torch):
    adapter.publish("shared", {"x": some(torch, "int32")})
    one, other = adapter.attach("shared", writable=True), adapter.attach("shared")
    one["x"].array[0, 0] = 77
    assert other["x"].array[0, 0] == 77
    del one, other


def test_what_lies_scattered_is_gathered(adapter, torch):
    tensor = some(torch, "int64")
    adapter.publish("views", {"t": tensor.t(), "every": tensor[:, ::2], "none": tensor[:0]})
    seen = adapter.attach("views").tensors
    assert np.array_equal(seen["t"].array, tensor.array.T)
    assert np.array_equal(seen["every"].array, tensor.array[:, ::2])
    assert seen["none"].shape == (0, 6)


def make(torch, **options):
    module = torch.nn.Module()
    module.body = torch.nn.Linear(4, 8, **options)
    module.head = torch.nn.Linear(4, 8, **options)
    module.head.weight = module.body.weight  # tied
    module.register_buffer("scale", torch.Tensor(np.float32([2.5])), persistent=False)
    return module


def test_a_module(adapter, torch):
    module = make(torch)
    adapter.publish("module", module, metadata={"step": 3})
    assert adapter.attach("module").metadata == {"step": 3}
    other = make(torch)
    for _, parameter in other.named_parameters():
        parameter.array[...] = 0
    assert adapter.attach("module", other) is other
    for (name, mine), (_, its) in zip(module.named_parameters(), other.named_parameters()):
        assert np.array_equal(mine.array, its.array), name
        assert isinstance(its, torch.nn.Parameter) and not its.requires_grad
    assert other.head.weight is other.body.weight
    assert other.scale.array[0] == 2.5
    # Tied tensors were copied once: they are one memory.
    seen = adapter.attach("module")
    assert seen["head.weight"].data_ptr() == seen["body.weight"].data_ptr()
    del other, its, seen


def test_a_writable_module_learns(adapter, torch):
    adapter.publish("module", make(torch))
    module = adapter.attach("module", make(torch), writable=True)
    assert all(parameter.requires_grad for _, parameter in module.named_parameters())
    module.body.bias.array[0] = 5
    assert adapter.attach("module")["body.bias"].array[0] == 5
    del module


def test_a_module_that_does_not_fit_stays_as_it_was(adapter, torch):
    adapter.publish("module", make(torch))
    less = make(torch, bias=False)
    before = less.body.weight
    with pytest.raises(gpumem.NotFoundError, match="0 tensors are only in the module .*2 only in the publication"):
        adapter.attach("module", less)
    assert less.body.weight is before
    adapter.attach("module", less, strict=False)
    assert less.body.weight is not before
    wrong = torch.nn.Module()
    wrong.body = torch.nn.Linear(4, 9)
    with pytest.raises(gpumem.InvalidArgumentError, match="body"):
        adapter.attach("module", wrong, strict=False)
    del less


def test_what_others_published_attaches_too(adapter):
    gpumem.publish("numpy", {"a": np.arange(5.0)})
    assert np.array_equal(adapter.attach("numpy")["a"].array, np.arange(5.0))


@pytest.mark.parametrize("row, dtype", [
    ({"dtype": "uint8", "offset": 1, "shape": [64]}, "float32"),
    ({"dtype": "|V4", "offset": 1, "shape": [4]}, "float32"),
    ({"dtype": "|S2", "offset": 1, "shape": [4]}, "bfloat16"),
    ({"dtype": "int64", "offset": 8, "shape": [4, 2]}, "complex128")])
def test_a_publisher_cannot_make_unaligned_tensors(adapter, row, dtype):
    client = gpumem.default_client()
    segment = client.acquire(4096)
    blob = {"format": "gpumem-arrays/1", "single": False,
            "metadata": {"format": "gpumem-torch/1", "single": False, "metadata": None,
                         "dtypes": {"w": dtype}},
            "arrays": [{"name": "w", "strides": None, "segment": 0, "framework": "torch", **row}]}
    _gpumem.publish(client.handle, "wrong", [segment.handle], json.dumps(blob).encode(), 0, True, 0,
                    0, b"")
    with pytest.raises(gpumem.InvalidArgumentError, match="not aligned"):
        adapter.attach("wrong")


@pytest.mark.parametrize("said", [
    {}, {"single": False}, {"single": False, "dtypes": {}}, {"single": False, "dtypes": ["w"]},
    {"single": False, "dtypes": {"v": "int64"}}, {"single": 0, "dtypes": {"w": "int64"}},
    {"single": True, "dtypes": {"w": "int64"}}, {"single": False, "dtypes": {"w": 5}}])
def test_a_publishers_metadata_is_checked(adapter, said):
    gpumem.publish("wrong", {"w": np.arange(3)}, metadata={"format": "gpumem-torch/1", **said})
    with pytest.raises(gpumem.DataLossError, match="gpumem-torch/1"):
        adapter.attach("wrong")


@pytest.mark.parametrize("dtype", ["nn", "Tensor", "__doc__", "none", "int32"])
def test_a_publisher_names_a_dtype_that_fits(adapter, dtype):
    gpumem.publish("wrong", {"w": np.arange(3)}, metadata={
        "format": "gpumem-torch/1", "single": False, "dtypes": {"w": dtype}})
    with pytest.raises(gpumem.InvalidArgumentError):
        adapter.attach("wrong")


@pytest.mark.parametrize("wrong", [5, {"a": 5}, {5: None}, [1]])
def test_no_tensors(adapter, wrong):
    with pytest.raises(gpumem.InvalidArgumentError):
        adapter.publish("wrong", wrong)


def test_a_share_needs_no_producer(adapter, torch, daemon):
    said = run_python("""
import pickle
import numpy, torch, gpumem.torch
tensor = torch.Tensor(numpy.arange(10, dtype="i2"), torch.bfloat16)
print(pickle.dumps(gpumem.torch.share(tensor)).hex(), flush=True)
""", runtime_dir=daemon.runtime_dir, fakes=True)
    shared = pickle.loads(bytes.fromhex(said))
    tensor = shared.open()
    assert tensor.dtype is torch.bfloat16 and np.array_equal(tensor.array, np.arange(10))
    info, = gpumem.default_client().publications()
    assert info.name == shared.name and info.expire_after == 600
    shared.unshare()
    with pytest.raises(gpumem.NotFoundError):
        shared.open()
    assert tensor.array[9] == 9
    del adapter


def test_the_allocator_is_the_librarys(adapter, torch):
    pool = adapter.use()
    assert torch.cuda.current.said == (
        gpumem.library_path(), "gpumem_torch_malloc", "gpumem_torch_free")
    library = ctypes.CDLL(gpumem.library_path())
    library.gpumem_torch_malloc.restype = ctypes.c_void_p
    library.gpumem_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.gpumem_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int,
                                          ctypes.c_void_p]
    data = library.gpumem_torch_malloc(5000, 0, None)
    assert pool.find(data)[1] >= 5000  # one library, one pool
    library.gpumem_torch_free(data, 5000, 0, None)
    pool.free_all_blocks()


def test_without_a_daemon_the_allocator_stays():
    said = run_python("""
import gpumem, gpumem.torch, torch
try:
    gpumem.torch.use()
except gpumem.UnavailableError:
    print(torch.cuda.current)
""", runtime_dir="/nonexistent", fakes=True)
    assert said.strip() == "None"


def test_a_mem_pool(adapter, torch):
    with adapter.using() as pool:
        assert pool.used and pool.allocator[0] == "of"
    assert adapter.mem_pool(no_split=True).options == {"no_split": True}
    assert isinstance(pool, torch.cuda.MemPool)
