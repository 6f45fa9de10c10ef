# SPDX-License-Identifier: Apache-2.0
"""JAX and brokered arrays on a GPU, by DLPack both ways. JAX has no hook for an allocator: what it
makes itself lies past the broker."""
import gc
import os
import pickle

import numpy as np
import pytest

import gpumem
from support import child, eventually

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of the GPU
jax = pytest.importorskip("jax")
jnp = jax.numpy

try:
    GPUS = jax.devices("cuda")
except RuntimeError as error:
    pytest.skip(f"this JAX has no GPU: {error}", allow_module_level=True)


def filled(client, kind=None):
    """Returns a brokered array of 0, 1, …, 14 in the shape (3, 5)."""
    array = client.empty((3, 5), "float32", kind=kind)
    source = gpumem.asarray(np.arange(15, dtype="float32").reshape(3, 5))
    gpumem.arrays.copy_into(array, source)
    return array


@pytest.mark.parametrize("kind", ["vmm", "mempool", "ipc"])
def test_jax_sees_an_array_of_each_kind(client, kind):
    array = filled(client, kind)
    seen = jax.dlpack.from_dlpack(array)
    assert seen.unsafe_buffer_pointer() == array.ptr
    assert seen.shape == (3, 5) and seen.dtype == jnp.float32
    assert float((seen * 2).sum()) == 210


def test_bfloat16(client):
    array = client.empty(64, "bfloat16")
    seen = jax.dlpack.from_dlpack(array)
    assert seen.dtype == jnp.bfloat16 and seen.unsafe_buffer_pointer() == array.ptr


def test_jaxs_arrays_are_seen_without_a_copy(client):
    mine = jnp.arange(10, dtype=jnp.float32)
    mine.block_until_ready()
    for seen in (gpumem.from_dlpack(mine), gpumem.asarray(mine)):
        assert seen.ptr == mine.unsafe_buffer_pointer() and seen.shape == (10,)


def test_what_jax_makes_is_not_charged(client):
    charged = client.usage().charged
    made = jnp.ones(1 << 22)
    made.block_until_ready()
    assert client.usage().charged <= charged


def test_published_by_jax_attached_by_jax(client, name):
    gpumem.publish(name, {"w": jnp.arange(100, dtype=jnp.float32)})
    said = child("""
        import sys, gpumem, jax
        w = gpumem.attach(sys.argv[1])["w"]
        try:
            jax.dlpack.from_dlpack(w)
        except BufferError:
            print("read-only")
        seen = jax.dlpack.from_dlpack(w.without_readonly_mark())
        print(seen.unsafe_buffer_pointer() == w.ptr, float(jax.jit(lambda x: (x * 2).sum())(seen)))
    """, name)
    assert said.split() == ["read-only", "True", "9900.0"]


def test_a_shared_array_opens_in_jax(client):
    array = filled(client)
    ticket = pickle.dumps(gpumem.share(array)).hex()
    said = child("""
        import pickle, sys, gpumem, jax
        seen = jax.dlpack.from_dlpack(gpumem.open(pickle.loads(bytes.fromhex(sys.argv[1]))))
        print(float(seen.sum()))
    """, ticket)
    assert float(said) == 105


def test_the_memory_lives_while_jaxs_array_does(client):
    before = client.usage().devices[0].leased
    seen = jax.dlpack.from_dlpack(filled(client))
    assert client.usage().devices[0].leased > before
    assert float(seen.sum()) == 105
    del seen
    gc.collect()
    eventually(lambda: client.usage().devices[0].leased == before, "the memory is given back")
