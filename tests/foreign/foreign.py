#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""foreign.py HANDLE BYTES CRC32: do programs that do not know gpumem see its memory?

HANDLE is the result of Segment::ipc_handle(), as 128 hexadecimal digits; BYTES the segment's size,
and CRC32 the checksum of its content, as 8 digits. CuPy, Numba and PyTorch each open it in a
separate process, on the first GPU that CUDA_VISIBLE_DEVICES leaves. Prints a line for each; exit
code 0 if all installed ones see it.
"""
import importlib.util
import os
import subprocess
import sys
import zlib


def see_by_cupy(handle, size):
    import cupy
    address = cupy.cuda.runtime.ipcOpenMemHandle(handle)
    memory = cupy.cuda.UnownedMemory(address, size, owner=None)
    array = cupy.ndarray((size,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return array.get().tobytes()


def see_by_numba(handle, size):
    import numpy
    from numba import cuda
    from numba.cuda.cudadrv import driver
    context = cuda.current_context()
    # Unpickling an IpcHandle calls this: with NVIDIA's binding it takes bytes, else numbers.
    data = handle if getattr(driver, "USE_NV_BINDING", True) else tuple(handle)
    opened = driver.IpcHandle._rebuild(data, size, context.device.get_device_identity(), 0)
    return opened.open_array(context, (size,), numpy.dtype("uint8")).copy_to_host().tobytes()


def see_by_torch(handle, size):
    import torch
    torch.cuda.init()
    # torch.multiprocessing calls this. It has a counter of references, by which a producer in
    # PyTorch learns that its consumers are done, and an event. Neither is here: our lease does
    # this.
    storage = torch.UntypedStorage._new_shared_cuda(
        torch.cuda.current_device(), handle, size, 0, b"/gpumem-has-no-counter", 0, b"", False)
    array = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
    return array.cpu().numpy().tobytes()


LIBRARIES = {"cupy": see_by_cupy, "numba": see_by_numba, "torch": see_by_torch}


def be_one(library, handle, size):
    """Runs in the child: prints the content, as 'COUNT CRC32'."""
    seen = LIBRARIES[library](bytes.fromhex(handle), int(size))
    print("seen %d %08x" % (len(seen), zlib.crc32(seen)), flush=True)
    os._exit(0)  # no library's clean-up can undo what was seen


def main():
    if len(sys.argv) == 5 and sys.argv[1] in LIBRARIES:
        be_one(sys.argv[1], sys.argv[2], sys.argv[3])
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    handle, size, crc32 = sys.argv[1:]
    well = True
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            print("%s: skipped, not installed" % library)
            continue
        child = subprocess.run([sys.executable, __file__, library, handle, size, crc32],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        seen = [line for line in child.stdout.splitlines() if line.startswith("seen ")]
        if child.returncode != 0 or not seen:
            last = (child.stderr.strip().splitlines() or ["exit code %d" % child.returncode])[-1]
            print("%s: FAILED: %s" % (library, last))
            well = False
        elif seen[0] != "seen %s %s" % (size, crc32):
            print("%s: FAILED: it saw '%s', not '%s %s'" % (library, seen[0][5:], size, crc32))
            well = False
        else:
            print("%s: ok, %s bytes seen" % (library, size))
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
