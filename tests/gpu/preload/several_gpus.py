#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""several_gpus.py NAME: as workloads.py, for programs that use two GPUs."""
import os

from workloads import GIB, compared, main, torch_module, workload

NAMES = ("peer_kernels peer_copies ipc_on_peer fill_both ranks").split()


def two(count):
    if count < 2:
        raise ImportError("it needs two GPUs")


def cupy_module():
    import cupy
    two(cupy.cuda.runtime.getDeviceCount())
    return cupy


@workload
def peer_kernels():
    """A kernel of the second GPU reads and writes memory of the first one."""
    cupy = cupy_module()
    can = cupy.cuda.runtime.deviceCanAccessPeer(1, 0)
    with cupy.cuda.Device(0):
        array = cupy.full(1 << 20, 7, dtype=cupy.int32)
        later = cupy.full(64 << 20, 3, dtype=cupy.int32)
        cupy.cuda.Device(0).synchronize()
    if not can:
        return {"peers": False}
    with cupy.cuda.Device(1):
        cupy.cuda.runtime.deviceEnablePeerAccess(0)
        total = int((array + 1).sum()) + int(later.sum())
        cupy.multiply(array, 2, out=array)
        cupy.cuda.Device(1).synchronize()
    return {"peers": True, "read": total, "written": int(array.sum())}


@workload
def peer_copies():
    torch = torch_module()
    two(torch.cuda.device_count())
    first = torch.arange(8 << 20, device="cuda:0", dtype=torch.int32)
    second = first.to("cuda:1") * 2
    back = second.to("cuda:0") // 2
    return {"same": bool((first == back).all()), "sum": int(second.sum())}


def child_of_ipc(handle, results):
    import cupy
    with cupy.cuda.Device(1):
        address = cupy.cuda.runtime.ipcOpenMemHandle(handle)
        memory = cupy.cuda.UnownedMemory(address, 4 << 20, None, 1)
        array = cupy.ndarray((1 << 20,), cupy.int32, cupy.cuda.MemoryPointer(memory, 0))
        total = int((array + 1).sum())
        cupy.multiply(array, 2, out=array)
        cupy.cuda.Device(1).synchronize()
        cupy.cuda.runtime.ipcCloseMemHandle(address)
    results.put(total)


@workload
def ipc_on_peer():
    """Another process opens memory of the first GPU for the second one."""
    import multiprocessing
    cupy = cupy_module()
    address = cupy.cuda.runtime.malloc(4 << 20)
    memory = cupy.cuda.UnownedMemory(address, 4 << 20, None, 0)
    array = cupy.ndarray((1 << 20,), cupy.int32, cupy.cuda.MemoryPointer(memory, 0))
    array.fill(7)
    cupy.cuda.Device(0).synchronize()
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    child = spawn.Process(target=child_of_ipc,
                          args=(cupy.cuda.runtime.ipcGetMemHandle(address), results))
    child.start()
    total = results.get(timeout=120)
    child.join()
    return {"read": total, "written": int(array.sum()), "child": child.exitcode}


@workload
def fill_both():
    """The limit is that of each GPU."""
    torch = torch_module()
    two(torch.cuda.device_count())
    got = []
    for device in range(2):
        parts = []
        try:
            while len(parts) < 21:
                parts.append(torch.empty(GIB, dtype=torch.int8, device=f"cuda:{device}"))
        except torch.OutOfMemoryError:
            pass
        got.append(parts)
    return {"_got": [len(parts) for parts in got]}


def rank(at, results):
    torch = torch_module()
    import torch.distributed as ranks
    torch.cuda.set_device(at)
    ranks.init_process_group("nccl", rank=at, world_size=2)
    tensor = torch.full((16 << 20,), at + 1.0, device="cuda")
    for _ in range(20):
        ranks.all_reduce(tensor)
        tensor /= 1.5
    if at == 0:
        ranks.send(tensor, 1)
    else:
        ranks.recv(tensor, 0)
    torch.cuda.synchronize()
    results.put(float(tensor.mean()))
    ranks.destroy_process_group()


@workload
def ranks():
    torch = torch_module()
    two(torch.cuda.device_count())
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29518", NCCL_NVLS_ENABLE="0")
    spawn = torch.multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [spawn.Process(target=rank, args=(at, results)) for at in range(2)]
    for process in processes:
        process.start()
    means = sorted(results.get(timeout=200) for _ in processes)
    for process in processes:
        process.join()
    return {"means": [round(mean, 3) for mean in means], "codes": [p.exitcode for p in processes]}


def gpus(node, report):
    """The part "gpus" of suite.py."""
    for name in NAMES:
        alone = node.run(name, preload=False, program="several_gpus.py")
        for mode in (True, "broker"):
            held = node.run(name, preload=mode, program="several_gpus.py")
            ok = "failed" not in alone and compared(alone) == compared(held)
            if name == "fill_both":
                ok = ok and held.get("_got") == [19, 19]
            report.tell(None if "skipped" in alone else ok, f"{name} {mode}", f"{alone} {held}")
            node.wait_empty(mode=mode)


if __name__ == "__main__":
    main()
