#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JAX works on weights that another process has published, and publishes its result.

    python3 jax_weights.py

Both ways go by DLPack. JAX has no hook for an allocator: the weights are brokered memory, and what
JAX calculates lies past the broker until gpumem.publish() copies it. Without a GPU JAX uses the
CPU, and without JAX NumPy does the work.
"""
import importlib.util
import multiprocessing
import os
import uuid

import numpy

import gpumem

ROWS, COLUMNS = 512, 256


def publish_weights(name):
    weights = numpy.arange(ROWS * COLUMNS, dtype="float32").reshape(ROWS, COLUMNS) % 7
    gpumem.publish(name, {"w": weights, "b": numpy.ones(COLUMNS, dtype="float32")})


def infer(name, result):
    """Attaches the weights, calculates ones @ w + b, and publishes the sums."""
    arrays = gpumem.attach(name)
    # JAX never writes to its arrays, so it may have memory that is mapped read-only.
    w, b = (arrays[key].without_readonly_mark() for key in ("w", "b"))
    if w.backend == "host" and importlib.util.find_spec("jax") is None:
        y, by = numpy.ones(ROWS, dtype="float32") @ numpy.asarray(w) + numpy.asarray(b), "NumPy"
    else:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else: most of the GPU
        import jax

        @jax.jit
        def forward(w, b):
            return jax.numpy.ones(ROWS, dtype="float32") @ w + b

        seen = jax.dlpack.from_dlpack(w)
        assert seen.unsafe_buffer_pointer() == w.ptr  # no copy
        y, by = forward(seen, jax.dlpack.from_dlpack(b)), "JAX"
    gpumem.publish(result, y, metadata={"by": by})


def run(function, *arguments):
    """Blocks until a new process has run the function."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def main():
    name = f"jax-{uuid.uuid4().hex}"
    client = gpumem.default_client()
    try:
        run(publish_weights, name)
        run(infer, name, f"{name}-y")
        with client.attach(f"{name}-y") as publication:
            by = publication.metadata["by"]
            y = client.empty((COLUMNS,), "float32", kind="pinned")  # which the CPU can read
            gpumem.arrays.copy_into(y, publication.value)
            total = float(numpy.asarray(y).sum(dtype="float64"))
    finally:
        for each in (name, f"{name}-y"):
            try:
                client.unpublish(each)
            except gpumem.NotFoundError:
                pass  # the process that should have published it has failed
    expected = (numpy.arange(ROWS * COLUMNS) % 7).sum() + COLUMNS
    assert total == expected, (total, expected)
    print(f"{by} used {ROWS}x{COLUMNS} weights of a process that has ended: the sum is {total:.0f}")


if __name__ == "__main__":
    main()
