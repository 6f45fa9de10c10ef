# SPDX-License-Identifier: Apache-2.0
"""Brokered arrays on a GPU, as each framework sees them: no copies, both ways."""
import pickle

import numpy as np
import pytest

import gpumem
from support import MIB, child


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("kind", ["vmm", "mempool", "ipc"])
def test_cupy_sees_an_array_of_each_kind(cupy, client, kind):
    array = client.empty((3, 5), "float32", kind=kind)
    seen = cupy.asarray(array)
    assert seen.data.ptr == array.ptr and seen.shape == (3, 5) and seen.dtype == np.float32
    seen[...] = cupy.arange(15).reshape(3, 5)
    assert float(cupy.asarray(array).sum()) == 105


def test_cupy_by_dlpack(cupy, client):
    array = client.empty(1000, "int64")
    seen = cupy.from_dlpack(array)
    assert seen.data.ptr == array.ptr
    seen[:] = 3
    assert int(seen.sum()) == 3000


def test_torch_by_dlpack_and_by_interface(torch, client):
    array = client.empty((4, 4), "float32")
    one, other = torch.from_dlpack(array), torch.as_tensor(array, device="cuda")
    assert one.data_ptr() == other.data_ptr() == array.ptr
    one.fill_(2)
    assert other.sum().item() == 32


def test_numba_sees_it(client):
    cuda = pytest.importorskip("numba.cuda")
    array = client.empty(100, "float64")
    seen = cuda.as_cuda_array(array)
    assert seen.__cuda_array_interface__["data"][0] == array.ptr
    seen.copy_to_device(np.arange(100.0))
    assert cuda.as_cuda_array(array).copy_to_host().sum() == 4950


def test_bfloat16_by_dlpack(torch, client):
    array = client.empty(64, "bfloat16")
    seen = torch.from_dlpack(array)
    assert seen.dtype == torch.bfloat16 and seen.data_ptr() == array.ptr


def test_other_libraries_arrays_are_seen_without_a_copy(cupy, torch):
    mine = cupy.arange(10)
    assert gpumem.asarray(mine).ptr == mine.data.ptr
    tensor = torch.arange(10, device="cuda")
    assert gpumem.asarray(tensor).ptr == tensor.data_ptr()
    assert gpumem.from_dlpack(tensor).shape == (10,)


def test_the_memory_lives_while_a_view_does(cupy, client):
    before = client.usage().devices[0].leased
    seen = cupy.asarray(client.empty(2 * MIB, "uint8"))
    seen[:] = 9
    assert int(seen.sum(dtype="int64")) == 18 * MIB
    assert client.usage().devices[0].leased > before
    del seen
    assert client.usage().devices[0].leased == before


@pytest.mark.parametrize("kind", ["vmm", "mempool", "ipc"])
def test_a_shared_array_opens_in_another_process(cupy, client, kind):
    array = client.empty(1000, "int32", kind=kind)
    seen = cupy.asarray(array)
    seen[:] = cupy.arange(1000)
    cupy.cuda.runtime.deviceSynchronize()
    ticket = pickle.dumps(gpumem.share(array)).hex()
    said = child("""
        import pickle, sys, cupy, gpumem
        seen = cupy.asarray(gpumem.open(pickle.loads(bytes.fromhex(sys.argv[1]))))
        print(int(seen.sum()))
        seen += 1
        cupy.cuda.runtime.deviceSynchronize()
    """, ticket)
    assert int(said) == 499500
    assert int(seen.sum()) == 500500


def test_published_by_cupy_attached_by_torch(cupy, client, name):
    pytest.importorskip("torch")
    gpumem.publish(name, {"a": cupy.arange(100, dtype="float32"), "b": cupy.ones((2, 3))})
    said = child("""
        import sys, gpumem, torch
        arrays = gpumem.attach(sys.argv[1])
        a = torch.from_dlpack(arrays["a"].without_readonly_mark())
        b = torch.from_dlpack(arrays["b"].without_readonly_mark())
        print(a.sum().item(), list(b.shape), b.dtype)
    """, name)
    assert said.split("\n")[0] == "4950.0 [2, 3] torch.float64"


def test_a_publication_outlives_its_publisher(client, name):
    pytest.importorskip("torch")
    child("""
        import os, signal, sys, gpumem, torch
        gpumem.publish(sys.argv[1], torch.arange(1000, device="cuda"))
        os.kill(os.getpid(), signal.SIGKILL)
    """, name, fails=True)
    import torch
    tensor = torch.from_dlpack(gpumem.attach(name).without_readonly_mark())
    assert tensor.sum().item() == 499500


def test_pinned_memory_is_for_both(client):
    torch = pytest.importorskip("torch")
    array = client.empty(1000, "float32", kind="pinned")
    host = np.asarray(array)
    host[:] = np.arange(1000)
    assert host.ctypes.data == array.ptr
    assert torch.from_numpy(host).to("cuda").sum().item() == 499500


def test_interprocess_events_order_two_processes(cupy, client):
    import uuid
    event_name = uuid.uuid4().hex
    array = client.empty(64 * MIB, "uint8")
    with client.create_event(event_name) as event:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            seen = cupy.asarray(array)
            for _ in range(50):
                seen += 1
        event.record(stream.ptr)
        ticket = pickle.dumps(gpumem.share(array)).hex()
        said = child("""
            import pickle, sys, cupy, gpumem
            client = gpumem.default_client()
            event = client.open_event(sys.argv[2])
            stream = cupy.cuda.Stream(non_blocking=True)
            event.wait(stream.ptr)
            with stream:
                seen = cupy.asarray(gpumem.open(pickle.loads(bytes.fromhex(sys.argv[1]))))
                print(int(seen.min()), int(seen.max()))
        """, ticket, event_name)
    assert said.split() == ["50", "50"]


def test_a_denial_says_why(client):
    with pytest.raises(MemoryError) as denied:
        client.acquire(70 << 30)
    assert denied.value.denial.limit > 0 and denied.value.denial.asked == 70 << 30
