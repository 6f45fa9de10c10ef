#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes and two libraries work on one tensor, and nothing is copied.

    python3 two_frameworks.py

This process makes the tensor with CuPy; another adds to it with PyTorch; this one sees it. Where
the daemon has no GPU (gpumemd --backend host), both use NumPy.
"""
import multiprocessing
import time

import gpumem


def library(wanted, on_gpu):
    """The module, and how it sees an array of gpumem's."""
    if not on_gpu:
        import numpy
        return numpy, numpy.asarray
    if wanted == "torch":
        import torch
        return torch, torch.from_dlpack
    import cupy
    return cupy, cupy.asarray


def settle(on_gpu):
    """Waits for the GPU's work: another process is told of it by other means than its stream."""
    if on_gpu:
        gpumem._gpumem.cuda_synchronize()


def other_process(ticket, on_gpu, answers):
    module, see = library("torch", on_gpu)
    began = time.perf_counter()
    tensor = see(gpumem.open(ticket))
    opened = time.perf_counter() - began
    tensor += 1
    settle(on_gpu)
    answers.put((module.__name__, tuple(tensor.shape), opened))


def main():
    on_gpu = gpumem.default_client().devices()[0].backend == "cuda"
    module, see = library("cupy", on_gpu)
    array = gpumem.empty((1024, 1024), "float32")
    tensor = see(array)
    tensor[...] = module.arange(1024, dtype="float32")
    settle(on_gpu)

    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=other_process, args=(gpumem.share(array), on_gpu, answers))
    child.start()
    name, shape, opened = answers.get(timeout=120)
    child.join()
    expected = 1024 * (1023 * 1024 / 2 + 1024)
    total = float(tensor.sum(dtype="float64"))
    assert total == expected, (total, expected)
    print(f"{module.__name__} made {shape}, {name} opened it in {opened * 1e3:.1f} ms and added 1, "
          f"and {module.__name__} sees the sum {total:.0f}")


if __name__ == "__main__":
    main()
