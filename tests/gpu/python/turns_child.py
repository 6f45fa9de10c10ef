#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One process of bench_turns.py, which tells it what to do, line by line.

    turns_child.py ROLE --seed N --mib SIZE --piece-mib SIZE [--tenant NAME] [--file PATH]

Each command is a method of the role's class. The answer is a line of JSON: when the method began and
ended, by the clock of all processes, and its result.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import sys
import time

import cuda_driver

MIB = 1 << 20
READ_BYTES = 8 * MIB
WAIT_S = 60


class NumpyWords:
    """Arrays of the host backend."""

    def __init__(self):
        import numpy
        self.module = numpy

    def view(self, array):
        return self.module.asarray(array)

    def range(self, count):
        return self.module.arange(count, dtype="int32")

    def synchronize(self):
        pass


class TorchWords:
    """Arrays of a GPU."""

    def __init__(self):
        import torch
        self.module = torch
        torch.zeros(1, device="cuda")  # makes the context

    def view(self, array):
        return self.module.as_tensor(array, device="cuda")

    def range(self, count):
        return self.module.arange(count, dtype=self.module.int32, device="cuda")

    def synchronize(self):
        self.module.cuda.synchronize()


class Contents:
    """Words in several arrays whose values are known. Each turn changes all of them."""

    def __init__(self, words, arrays, seed):
        self.words, self.arrays, self.seed = words, [words.view(array) for array in arrays], seed
        self.base = words.range(len(self.arrays[0])) * 2654435
        self.changes = 0

    def _added(self, index):
        return self.seed + 7919 * index + self.changes

    def fill(self):
        for index, array in enumerate(self.arrays):
            array[:] = self.base + self._added(index)
        self.words.synchronize()

    def wrong(self):
        """Returns the number of arrays that have a wrong word. Compares on the device."""
        found = [((array - self.base) != self._added(index)).any()
                 for index, array in enumerate(self.arrays)]
        return sum(bool(each) for each in found)

    def change(self):
        for array in self.arrays:
            array += 1
        self.changes += 1
        self.words.synchronize()


class Tenant:
    """Memory on the device, with contents."""

    def __init__(self, args):
        self.args = args
        self.piece = args.piece_mib * MIB
        self.count = args.mib // args.piece_mib
        self.words = self.contents = None

    def hold(self, arrays):
        self.contents = Contents(self.words, arrays, self.args.seed)
        self.contents.fill()

    def work(self):
        """Checks all words, and changes them. Returns the number of wrong arrays."""
        wrong = self.contents.wrong()
        self.contents.change()
        return wrong


class GpumemTenant(Tenant):
    """Suspends and resumes segments."""

    def __init__(self, args):
        super().__init__(args)
        import gpumem
        self.gpumem = gpumem
        self.client = gpumem.connect(tenant=args.tenant, name="bench-turns")
        on_gpu = self.client.devices()[0].backend == "cuda"
        self.words = TorchWords() if on_gpu else NumpyWords()
        self.segments = []

    def load(self):
        self.segments = self.client.acquire_many(self.piece, self.count, kind="vmm", wait=WAIT_S)
        self.hold([one.array(dtype="int32") for one in self.segments])

    def leave(self):
        self.client.suspend(self.segments)

    def enter(self):
        self.client.resume(self.segments, wait=WAIT_S)

    def denied(self):
        """True if the suspended memory does not fit beside that of the other tenant."""
        try:
            self.client.resume(self.segments)
        except self.gpumem.ResourceExhaustedError:
            return True
        return False


class Plain:
    """Memory of the driver that __cuda_array_interface__ describes."""

    def __init__(self, pointer, size):
        self.__cuda_array_interface__ = {"shape": (size // 4,), "typestr": "<i4", "version": 3,
                                         "data": (pointer, False), "strides": None}


class PlainTenant(Tenant):
    """Memory of cuMemAlloc. The driver moves it, asked by another process."""

    def __init__(self, args):
        super().__init__(args)
        self.words = TorchWords()
        self.cuda = cuda_driver.Cuda()
        self.cuda.use_context()
        self.pointers = []

    def allocate(self):
        self.pointers = [self.cuda.allocate(self.piece) for _ in range(self.count)]

    def load(self):
        self.allocate()
        self.hold([Plain(pointer, self.piece) for pointer in self.pointers])
        self.words.module.cuda.empty_cache()

    def work(self):
        wrong = super().work()
        self.words.module.cuda.empty_cache()  # the driver would move it, too
        return wrong


class ReloadTenant(PlainTenant):
    """Frees its memory, and reads its first contents from a file in the page cache.

    Several threads read pieces of 8 MiB into pinned memory. Each has two such pieces, so that one is
    read while the other is copied to the device.
    """

    def __init__(self, args):
        super().__init__(args)
        threads = min(12, os.cpu_count())
        self.threads = concurrent.futures.ThreadPoolExecutor(threads)
        self.slots = [[(self.cuda.pinned(READ_BYTES), self.cuda.stream()) for _ in range(2)]
                      for _ in range(threads)]

    def in_pieces(self, flags, work):
        """Calls work(file, offset, address, buffer, stream) for each piece, in all threads."""
        pieces = iter([(first * self.piece + offset, pointer + offset)
                       for first, pointer in enumerate(self.pointers)
                       for offset in range(0, self.piece, READ_BYTES)])
        file = os.open(self.args.file, flags, 0o600)

        def loop(slots):
            self.cuda.use_context()
            for buffer, stream in itertools.cycle(slots):
                piece = next(pieces, None)  # one step for the interpreter
                if piece is None:
                    break
                self.cuda.synchronize(stream)  # the buffer's last copy
                work(file, *piece, buffer, stream)
            for _, stream in slots:
                self.cuda.synchronize(stream)

        try:
            list(self.threads.map(loop, self.slots))
        finally:
            os.close(file)

    def _write(self, file, offset, pointer, buffer, stream):
        size = min(READ_BYTES, self.piece)
        self.cuda.copy_out(buffer, pointer, size, stream)
        self.cuda.synchronize(stream)
        if os.pwrite(file, memoryview(buffer)[:size], offset) != size:
            raise OSError(f"{self.args.file} is full")

    def _read(self, file, offset, pointer, buffer, stream):
        size = min(READ_BYTES, self.piece)
        if os.preadv(file, [memoryview(buffer)[:size]], offset) != size:
            raise OSError(f"{self.args.file} is too short")
        self.cuda.copy_in(pointer, buffer, size, stream)

    def load(self):
        super().load()
        self.in_pieces(os.O_CREAT | os.O_TRUNC | os.O_WRONLY, self._write)

    def leave(self):
        for pointer in self.pointers:
            self.cuda.free(pointer)

    def enter(self):
        self.allocate()
        self.in_pieces(os.O_RDONLY, self._read)

    def work(self):
        self.contents.arrays = [self.words.view(Plain(pointer, self.piece))
                                for pointer in self.pointers]
        self.contents.changes = 0  # the file has the first contents
        return super().work()


class Floor(PlainTenant):
    """Copies of the same bytes from and to pinned memory."""

    def __init__(self, args):
        super().__init__(args)
        self.stream = self.cuda.stream()
        self.buffers = [self.cuda.pinned(self.piece) for _ in range(min(16, self.count))]

    def leave(self):
        for pointer, buffer in zip(self.pointers, itertools.cycle(self.buffers)):
            self.cuda.copy_out(buffer, pointer, self.piece, self.stream)
        self.cuda.synchronize(self.stream)

    def enter(self):
        for pointer, buffer in zip(self.pointers, itertools.cycle(self.buffers)):
            self.cuda.copy_in(pointer, buffer, self.piece, self.stream)
        self.cuda.synchronize(self.stream)


ROLES = {"gpumem": GpumemTenant, "checkpoint": PlainTenant, "reload": ReloadTenant, "floor": Floor}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--piece-mib", type=int, required=True)
    parser.add_argument("--tenant")
    parser.add_argument("--file")
    args = parser.parse_args()
    tenant = ROLES[args.role](args)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        began = time.monotonic()
        result = getattr(tenant, line.strip())()
        print(json.dumps({"began": began, "ended": time.monotonic(), "result": result}), flush=True)


if __name__ == "__main__":
    main()
