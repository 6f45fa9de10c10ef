# SPDX-License-Identifier: Apache-2.0
"""JAX and brokered arrays on the host backend, by DLPack both ways: with JAX if that is
installed, else with a stand-in."""
import gc
import importlib.util
import sys

import gpumem
import pytest
from conftest import FAKES, eventually, run_python


@pytest.fixture(scope="module", name="jax")
def _jax():
    if importlib.util.find_spec("jax") is None:
        sys.path.insert(0, FAKES)
    import jax  # pylint: disable=import-outside-toplevel,import-error
    return jax


def filled(client):
    """Returns a brokered array whose last element is 5."""
    array = client.empty((2, 3), "float32")
    gpumem.arrays.copy_into(array, gpumem.asarray(memoryview(bytes(24)).cast("f", (2, 3))))
    memoryview(array)[1, 2] = 5
    return array


def test_jax_sees_the_same_memory(client, jax):
    array = filled(client)
    seen = jax.dlpack.from_dlpack(array)
    assert seen.unsafe_buffer_pointer() == array.ptr
    assert seen.shape == (2, 3) and str(seen.dtype) == "float32"


def test_jaxs_arrays_are_seen_without_a_copy(client, jax):
    array = filled(client)
    mine = jax.dlpack.from_dlpack(array)
    for back in (gpumem.from_dlpack(mine), gpumem.asarray(mine)):
        assert back.ptr == mine.unsafe_buffer_pointer() and back.shape == (2, 3)
    del back


def test_the_memory_lives_while_jaxs_array_does(client, jax):
    seen = jax.dlpack.from_dlpack(filled(client))
    gc.collect()
    assert client.usage().charged > 0
    assert seen.shape == (2, 3)
    del seen
    gc.collect()
    eventually(lambda: client.usage().charged == 0, "the memory is given back")


def test_read_only_memory_needs_its_mark_off(client, jax):
    gpumem.publish("jax", {"w": filled(client)})
    w = gpumem.attach("jax")["w"]
    with pytest.raises(BufferError, match="without_readonly_mark"):
        jax.dlpack.from_dlpack(w)
    seen = jax.dlpack.from_dlpack(w.without_readonly_mark())
    assert seen.unsafe_buffer_pointer() == w.ptr
    del seen, w
    gc.collect()


def test_what_jax_has_is_published(client, jax, daemon):
    mine = jax.dlpack.from_dlpack(filled(client))
    gpumem.publish("jax", {"y": mine})
    with client.attach("jax") as publication:
        assert publication.frameworks["y"] in ("jax", "jaxlib")
    said = run_python("""
import gpumem
print(memoryview(gpumem.attach("jax")["y"]).tolist())
""", runtime_dir=daemon.runtime_dir)
    assert said.strip() == "[[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]]"
    del mine, publication
    gc.collect()
