#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Numba kernel works on an array that another process has published.

    python3 numba_kernel.py

The publisher has ended by then. If the daemon has no GPU, NumPy does the kernel's work.
"""
import multiprocessing
import uuid

import numpy

import gpumem


def publish(name):
    values = numpy.arange(1 << 20, dtype="float32")
    gpumem.publish(name, {"x": values, "y": numpy.zeros_like(values)})


def calculate(name):
    """y = 2 x + 1, in place; answers the sum of y."""
    client = gpumem.default_client()
    publication = client.attach(name, writable=True)
    x, y = publication["x"], publication["y"]
    if x.backend == "host":
        x, y = numpy.asarray(x), numpy.asarray(y)
        y[:] = 2 * x + 1
        return float(y.sum(dtype="float64")), "NumPy"

    from numba import cuda

    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = 2 * x[i] + 1

    x, y = cuda.as_cuda_array(x), cuda.as_cuda_array(y)
    kernel.forall(x.size)(x, y)
    cuda.synchronize()
    return float(y.copy_to_host().sum(dtype="float64")), "Numba"


def main():
    name = f"numba-{uuid.uuid4().hex}"
    publisher = multiprocessing.get_context("spawn").Process(target=publish, args=(name,))
    publisher.start()
    publisher.join()
    assert publisher.exitcode == 0
    try:
        total, by = calculate(name)
        count = 1 << 20
        assert total == count * (count - 1) + count, total
        print(f"{by} worked on {count} published numbers whose publisher has ended: the sum is "
              f"{total:.0f}")
    finally:
        gpumem.default_client().unpublish(name)


if __name__ == "__main__":
    main()
