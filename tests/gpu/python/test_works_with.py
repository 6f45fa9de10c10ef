# SPDX-License-Identifier: Apache-2.0
"""Libraries that take CUDA memory by its address, on brokered memory: torch.multiprocessing, NCCL,
GPUDirect. A test skips if its library is not installed."""
import ctypes
import importlib.util
import os

import pytest

from support import MIB, child

KINDS = ["vmm", "mempool", "ipc"]


def test_torch_multiprocessing_refuses_brokered_tensors():
    """torch.multiprocessing sends a cudaIpcMemHandle_t of PyTorch's own allocator, which a pluggable
    allocator does not give: an error in the sender, and no wrong data."""
    pytest.importorskip("torch")
    said = child("""
        import gpumem.torch
        gpumem.torch.use()
        import torch
        from torch.multiprocessing.reductions import reduce_tensor
        try:
            print("sent", reduce_tensor(torch.ones(1000, device="cuda"))[0].__name__)
        except RuntimeError as error:
            print("refused", str(error).splitlines()[0])
    """)
    print(said)
    assert said.startswith("refused")


def test_tickets_pass_through_torch_multiprocessing():
    """gpumem.torch.share() in its place: tickets in torch.multiprocessing's queues."""
    pytest.importorskip("torch")
    said = child("""
        import torch, gpumem.torch
        import torch.multiprocessing as multiprocessing
        gpumem.torch.use()
        shared = gpumem.torch.share(torch.arange(1000, device="cuda"))
        context = multiprocessing.get_context("spawn")
        there, back = context.SimpleQueue(), context.SimpleQueue()
        there.put(shared)
        ticket = there.get()
        print(type(ticket).__name__, ticket == shared, int(ticket.open().sum()))
        ticket.unshare()
    """)
    assert said.split() == ["SharedTensor", "True", "499500"]


@pytest.mark.parametrize("kind", KINDS)
def test_nccl_on_brokered_memory(client, kind):
    """ncclAllReduce and ncclCommRegister of one rank on the memory of each kind."""
    torch = pytest.importorskip("torch")
    torch.cuda.init()
    found = importlib.util.find_spec("nvidia.nccl")
    folder = "" if found is None else os.path.join(list(found.submodule_search_locations)[0], "lib")
    try:
        nccl = ctypes.CDLL(os.path.join(folder, "libnccl.so.2"))
    except OSError as error:
        pytest.skip(f"NCCL is not installed: {error}")

    class Id(ctypes.Structure):
        _fields_ = [("internal", ctypes.c_byte * 128)]
    torch.ones(1, device="cuda")  # makes the context current
    unique, communicator = Id(), ctypes.c_void_p()
    assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
    assert nccl.ncclCommInitRank(ctypes.byref(communicator), 1, unique, 0) == 0
    try:
        array, received = (client.empty(MIB, "float32", kind=kind) for _ in range(2))
        tensor = torch.from_dlpack(array).fill_(3)
        handle = ctypes.c_void_p()
        assert nccl.ncclCommRegister(communicator, ctypes.c_void_p(array.ptr),
                                     ctypes.c_size_t(array.nbytes), ctypes.byref(handle)) == 0
        float32, plus = 7, 0
        torch.cuda.synchronize()
        assert nccl.ncclAllReduce(ctypes.c_void_p(array.ptr), ctypes.c_void_p(received.ptr),
                                  ctypes.c_size_t(MIB), float32, plus, communicator, None) == 0
        torch.cuda.synchronize()
        assert torch.from_dlpack(received).sum().item() == 3 * MIB  # of one rank: a copy
        del tensor
        assert nccl.ncclCommDeregister(communicator, handle) == 0
    finally:
        nccl.ncclCommDestroy(communicator)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dma_buf_for_gpudirect(device, client, kind):
    """cuMemGetHandleForAddressRange: the descriptor that RDMA and storage drivers take. Needs no
    network card, and transfers nothing."""
    driver = pytest.importorskip("cuda.bindings.driver")
    supported = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
    if not driver.cuDeviceGetAttribute(supported, 0)[1]:
        pytest.skip("the driver gives no dma-bufs")
    segment = client.acquire(2 * MIB, kind=kind)
    result, fd = driver.cuMemGetHandleForAddressRange(
        segment.ptr, segment.nbytes, driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
        0)
    if kind == "vmm":
        assert result == driver.CUresult.CUDA_SUCCESS
        os.close(int(fd))
    else:  # memory of another process's allocator
        assert result == driver.CUresult.CUDA_ERROR_INVALID_VALUE


def test_gpudirect_storage(client, tmp_path):
    """cuFile by KvikIO reads a file into brokered memory."""
    kvikio = pytest.importorskip("kvikio")
    cupy = pytest.importorskip("cupy")
    path = tmp_path / "data"
    path.write_bytes(bytes([5]) * MIB)
    array = client.empty(MIB, "uint8")
    seen = cupy.asarray(array)
    with kvikio.CuFile(str(path), "r") as file:
        assert file.read(seen) == MIB
    assert int(seen.sum(dtype="int64")) == 5 * MIB
