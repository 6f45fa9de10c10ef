# SPDX-License-Identifier: Apache-2.0
"""Arrays: NumPy sees brokered memory without a copy, and the memory stays while it has views."""
import gc
import os
import pickle
import subprocess
import sys
import weakref

import gpumem
import numpy as np
import pytest
from conftest import MIB, charged, run_python

NAMES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
         "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_is_the_same_in_numpy(client, name):
    array = client.empty((3, 5), name)
    assert (array.dtype, array.shape, array.itemsize) == (name, (3, 5), np.dtype(name).itemsize)
    assert array.typestr == np.dtype(name).str
    seen = np.asarray(array)
    assert seen.dtype == np.dtype(name) and seen.shape == (3, 5) and not seen.any()
    assert seen.__array_interface__["data"] == (array.ptr, False)
    seen[:] = np.arange(15).reshape(3, 5)
    others = [] if name == "bool" else [np.from_dlpack(array)]  # NumPy 1.24 knows no such bool
    for other in (*others, np.asarray(memoryview(array)), np.asarray(gpumem.from_dlpack(array)),
                  np.asarray(gpumem.from_dlpack(array.__dlpack__(max_version=(1, 0)))),
                  np.asarray(gpumem.asarray(seen))):
        assert other.__array_interface__["data"][0] == array.ptr
        np.testing.assert_array_equal(other, seen)


@pytest.mark.parametrize("given, name", [
    (float, "float64"), (int, "int64"), (bool, "bool"), (np.float32, "float32"),
    (np.dtype("int16"), "int16"), ("<f4", "float32"), ("=i8", "int64"), ("torch.bfloat16", "bfloat16"),
    ("half", "float16"), (">f4", ">f4"), ("<M8[ns]", "<M8[ns]"), (np.dtype("S10"), "|S10"),
    (np.bool_, "bool"), ("<U3", "<U3"), ("float8_e4m3fn", "float8_e4m3fn")])
def test_dtypes_have_many_names(client, given, name):
    array = client.empty(4, given)
    assert array.dtype == name
    if array.typestr is not None:
        assert np.asarray(array).dtype == np.dtype(array.typestr)


def test_dtypes_that_numpy_has_no_word_for(client):
    array = client.empty((2, 2), "bfloat16")
    with pytest.raises(BufferError):
        memoryview(array)
    with pytest.raises(AttributeError, match="DLPack"):
        array.__array_interface__  # pylint: disable=pointless-statement
    again = gpumem.from_dlpack(array)
    assert (again.dtype, again.ptr, again.shape) == ("bfloat16", array.ptr, (2, 2))
    assert np.asarray(array.view("uint16")).dtype == np.uint16
    for wrong in ("none", "f", "<f3x", np.dtype([("a", "i4")]), object, None):
        with pytest.raises(gpumem.InvalidArgumentError):
            client.empty(3, wrong)
    with pytest.raises(BufferError, match="DLPack has no type"):
        client.empty(3, "S4").__dlpack__()


def test_numpy_keeps_the_memory(client):
    seen = np.asarray(client.empty(100, "uint8"))
    seen[:] = 7
    part = seen[10:20]
    del seen
    gc.collect()
    assert charged(client) > 0 and (part == 7).all()
    del part
    gc.collect()
    assert charged(client) == 0


def test_a_dlpack_consumer_keeps_the_memory(client):
    seen = np.from_dlpack(client.empty(100, "uint8"))
    assert charged(client) > 0
    del seen
    gc.collect()
    assert charged(client) == 0
    capsule = client.empty(100, "uint8").__dlpack__()
    assert charged(client) > 0
    taken = gpumem.from_dlpack(capsule)
    del capsule
    assert charged(client) > 0
    del taken
    gc.collect()
    assert charged(client) == 0
    # A capsule that no consumer takes, and one that is taken twice.
    for version in (None, (1, 0)):
        array = client.empty(100, "uint8")
        capsule = array.__dlpack__(max_version=version)
        del array, capsule
        gc.collect()
        assert charged(client) == 0
        capsule = client.empty(100, "uint8").__dlpack__(max_version=version)
        assert gpumem.from_dlpack(capsule).size == 100
        with pytest.raises(TypeError, match="already taken"):
            gpumem.from_dlpack(capsule)


def test_foreign_memory_is_kept_and_let_go(client):
    source = np.arange(10, dtype="int32")
    gone = weakref.ref(source)
    array = gpumem.from_dlpack(source)
    assert (array.kind, array.backend, array.device) == ("foreign", "host", "")
    del source
    gc.collect()
    assert gone() is not None or np.asarray(array)[9] == 9
    assert np.asarray(array).tolist() == list(range(10))
    del array
    gc.collect()
    assert gone() is None


def test_strides_and_shapes(client):
    segment = client.acquire(MIB)
    whole = np.asarray(segment.array((4, 6), "int32"))
    whole[:] = np.arange(24).reshape(4, 6)
    columns = segment.array((3, 4), "int32", offset=4, strides=(8, 24))
    assert not columns.c_contiguous and not columns.f_contiguous
    np.testing.assert_array_equal(np.asarray(columns), whole.T[1::2])
    np.testing.assert_array_equal(np.from_dlpack(columns), whole.T[1::2])
    assert memoryview(columns).tolist() == whole.T[1::2].tolist()
    with pytest.raises((BufferError, ValueError)):
        np.frombuffer(columns, "int32")
    backwards = segment.array((4,), "int32", offset=12, strides=(-4,))
    assert np.asarray(backwards).tolist() == [3, 2, 1, 0]
    assert np.asarray(segment.array((), "int32", offset=8)).item() == 2
    fortran = segment.array((4, 6), "int32", strides=(4, 16))
    assert fortran.f_contiguous and np.asarray(fortran).flags.f_contiguous
    assert segment.array((2, 12), "int32").reshape(4, -1).shape == (4, 6)
    assert segment.array((2, 12), "int32").reshape((24,)).strides == (4,)
    with pytest.raises(ValueError):
        segment.array((2, 12), "int32").reshape(5, 5)
    with pytest.raises(ValueError):
        columns.reshape(12)
    for shape, dtype, offset in (((MIB * 2 + 1,), "uint8", 0), ((1,), "int32", segment.nbytes - 3),
                                 ((1,), "uint8", -1), ((1,), "uint8", segment.nbytes)):
        with pytest.raises(gpumem.OutOfRangeError):
            segment.array(shape, dtype, offset=offset)
    for dtype, wrong in (("int32", {"offset": 2}), ("int16", {"strides": (4, 3)}),
                         ("complex128", {"offset": 8})):
        with pytest.raises(gpumem.InvalidArgumentError, match="not aligned"):
            segment.array((2, 2), dtype, **wrong)
    assert segment.array((2, 1, 0), "int32", offset=3, strides=(1, 1, 1)).size == 0
    with pytest.raises(gpumem.OutOfRangeError):
        segment.array((4,), "int32", strides=(-4,))
    with pytest.raises(ValueError):
        segment.array((2, -1), "int32")


def test_arrays_of_no_elements(client):
    array = client.empty((0, 3), "float32")
    assert charged(client) == 0 and array.nbytes == 0 and np.asarray(array).shape == (0, 3)
    assert np.from_dlpack(array).shape == (0, 3)
    assert np.asarray(client.empty((), "int8")).shape == ()


def test_dlpack_says_what_it_cannot(client):
    array = client.empty(4, "float32")
    assert array.__dlpack_device__() == (1, 0) == array.owner.__dlpack_device__()
    with pytest.raises(BufferError, match="copy"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="device"):
        array.__dlpack__(dl_device=(2, 0))
    assert np.from_dlpack(array.owner).nbytes == array.owner.nbytes
    assert not hasattr(array, "__cuda_array_interface__")
    same = client.open(array.owner.share(), read_only=True).array((4,), "float32")
    with pytest.raises(BufferError, match="without_readonly_mark"):
        same.__dlpack__()
    assert gpumem.from_dlpack(same).readonly
    assert not np.asarray(same).flags.writeable
    assert not same.without_readonly_mark().readonly
    with pytest.raises(TypeError):
        gpumem.from_dlpack(object())
    with pytest.raises(TypeError):
        gpumem.from_dlpack(b"")


def test_a_write_to_read_only_memory_faults(client, daemon):
    array = client.empty(4, "float32")
    done = run_python("""
import sys, gpumem, numpy
same = gpumem.connect().open(sys.argv[1], read_only=True).array((4,), "float32")
numpy.asarray(same.without_readonly_mark())[0] = 1
""", array.owner.share().value, runtime_dir=daemon.runtime_dir, check=False)
    assert done.returncode == -11


def test_copies_of_other_arrays(client):
    source = np.arange(24, dtype="int16").reshape(2, 3, 4)
    for array in (source, source.T, source[:, ::2], source[::-1], np.asfortranarray(source),
                  source[0, 0, 0], source[:0]):
        copy = client.copy(array)
        np.testing.assert_array_equal(np.asarray(copy), array)
        assert copy.owner is None if copy.size == 0 else copy.owner.kind == "vmm"
    assert bytes(memoryview(client.copy(b"bytes"))) == b"bytes"
    assert memoryview(client.copy(memoryview(b"12345678").cast("i"))).format == "i"
    with pytest.raises(gpumem.InvalidArgumentError, match="is not an array"):
        client.copy("text")
    with pytest.raises(gpumem.InvalidArgumentError, match="named fields"):
        client.copy(np.zeros(3, [("a", "i4")]))


def test_a_shared_array_opens_in_another_process(client, daemon):
    array = client.empty((3, 4), "float32")
    seen = np.asarray(array)
    seen[:] = np.arange(12).reshape(3, 4)
    assert gpumem.share(array).layout.framework == "gpumem"
    ticket = gpumem.share(seen)
    assert ticket.layout.framework == "numpy"
    said = run_python("""
import pickle, sys, gpumem, numpy
array = numpy.asarray(gpumem.open(pickle.load(sys.stdin.buffer)))
print(array.tolist())
array[0, 0] += 1
""", runtime_dir=daemon.runtime_dir, stdin=pickle.dumps(ticket))
    assert said.strip() == str(np.arange(12.0).reshape(3, 4).tolist())
    assert seen[0, 0] == 1
    part = seen[1:, ::2]
    np.testing.assert_array_equal(np.asarray(gpumem.open(gpumem.share(part))), part)
    np.testing.assert_array_equal(np.asarray(gpumem.open(gpumem.share(seen.T))), seen.T)
    block = client.pool().empty((5,), "int64")
    np.asarray(block)[:] = 3
    assert np.asarray(gpumem.open(gpumem.share(block))).tolist() == [3] * 5
    with pytest.raises(gpumem.InvalidArgumentError, match="copy"):
        gpumem.share(np.zeros(3))
    with pytest.raises(gpumem.InvalidArgumentError, match="copy"):
        gpumem.share(client.empty(0))


def test_a_ticket_is_pickled_into_children(daemon):
    script = daemon.folder / "parent.py"
    script.write_text("""
import multiprocessing, gpumem, numpy

def work(ticket):
    array = numpy.asarray(gpumem.open(ticket))
    array += 1
    return int(array.sum())

if __name__ == "__main__":
    array = gpumem.empty(10, "int64")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [gpumem.share(array), gpumem.share(numpy.asarray(array)[:5])]))
    print(numpy.asarray(array).tolist())
""")
    said = subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.PIPE,
                          env={**os.environ, "GPUMEM_RUNTIME_DIR": daemon.runtime_dir}, timeout=60)
    assert said.stdout.decode().splitlines() == ["[10, 10]", str([2] * 5 + [1] * 5)]


def test_asarray_takes_what_is_an_array(client):
    array = client.empty(3)
    assert gpumem.asarray(array) is array
    assert gpumem.asarray(array.owner).nbytes == array.owner.nbytes

    class Own:  # what speaks no protocol but the array interface
        __array_interface__ = {"shape": (2,), "typestr": "<i4", "version": 3, "strides": None,
                               "data": (np.asarray(array).ctypes.data, True)}

    seen = gpumem.asarray(Own())
    assert seen.readonly and seen.shape == (2,) and len(seen) == 2
    assert repr(seen).startswith("<gpumem.Array int32[2] at 0x")
    with pytest.raises(TypeError):
        len(client.empty(()))
