# SPDX-License-Identifier: Apache-2.0
"""Untrusted input: publications, tickets, buffers, interfaces, dtypes."""
import array as python_array
import copy
import ctypes
import json
import random

import gpumem
import numpy as np
import pytest
from conftest import MIB
from gpumem import _gpumem
from gpumem.arrays import Array, nowhere


def row(**changes):
    return {"name": "w", "dtype": "uint8", "shape": [4], "strides": None, "segment": 0, "offset": 0,
            "framework": "x", **changes}


@pytest.fixture(name="publish")
def _publish(client):
    """Publishes a segment with any metadata."""
    segment = client.acquire(MIB)

    def publish(*rows, single=False, blob=None):
        if blob is None:
            blob = json.dumps({"format": "gpumem-arrays/1", "single": single, "metadata": None,
                               "arrays": list(rows)}).encode()
        _gpumem.publish(client.handle, "x", [segment.handle], blob, 0, True, 0, 0, b"")

    yield publish
    segment.close(defer=True)


# ---- Publications --------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [
    {"shape": [1] * 33}, {"shape": [1] * 70}, {"shape": [4e18] * 30000, "strides": [0] * 30000},
    {"shape": [4], "strides": [1, 1]}, {"shape": [4], "strides": []}, {"shape": [1], "strides": [2**70]},
    {"shape": [2**61, 2**61], "strides": [0, 0]}, {"shape": [2**32, 2**32 - 1], "strides": [0, 0]},
    {"shape": [2**62], "dtype": "float32", "strides": [0]}, {"shape": [0, 2**61, 2**61]},
    {"shape": [0, 2**61, 2**61], "segment": None}, {"shape": "123"}, {"shape": [2.0]},
    {"shape": [True]}, {"shape": ["3"]}, {"shape": {"3": 0}}, {"shape": 4}, {"shape": [-1]},
    {"strides": "1"}, {"strides": [1.0]}, {"strides": {"1": 1}}, {"name": 3}, {"name": None},
    {"segment": True}, {"segment": False}, {"segment": 1}, {"segment": -1}, {"segment": None},
    {"dtype": "float32", "offset": 2}, {"dtype": "int16", "strides": [3]},
    {"dtype": "complex128", "offset": 8}, {"dtype": "bfloat16", "offset": 1}, {"dtype": "<U1", "offset": 2},
    {"offset": 2**80}, {"offset": -1}, {"offset": True}, {"offset": 0.0}, {"dtype": 5}, {"dtype": "|u4"},
    {"dtype": "b8"}, {"dtype": "V" + "9" * 40, "shape": [0]}, {"dtype": "M8[junk]"}, {"dtype": "<f4\n"},
    {"dtype": "float32[ns]"}, {"dtype": "<f4[ns]"}, {"framework": [1]}, {"framework": None}])
def test_metadata_that_lies_is_data_loss(client, publish, changes):
    publish(row(**changes))
    with pytest.raises(gpumem.DataLossError, match="not well-formed") as caught:
        client.attach("x")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("single, rows", [
    (True, []), (True, [row()]), (True, [row(name=""), row(name="")]), (False, [row(), row()]),
    (1, [row(name="")]), (True, [row(name=""), row()])])
def test_single_is_one_without_a_name(client, publish, single, rows):
    publish(*rows, single=single)
    with pytest.raises(gpumem.DataLossError, match="not well-formed"):
        client.attach("x")


def test_metadata_of_files_attaches(client, publish):
    """Loaders of files add checksums, and the files' places."""
    said = {"format": "gpumem-arrays/1", "single": False, "metadata": {"format": "pt"},
            "arrays": [row(xxh128="99aa" * 8)], "files": [{"name": "m", "bytes": 4, "arrays": [0, 1]}]}
    publish(blob=json.dumps(said).encode())
    attached = client.attach("x")
    assert list(attached) == ["w"] and attached.metadata == {"format": "pt"}


def test_what_is_in_order_attaches(client, publish):
    publish(row(shape=[1] * 32), row(name="strided", shape=[2, 3], strides=[-3, 1], offset=3),
            row(name="none", shape=[0, 7], segment=None),
            row(name="one", shape=[1], strides=[3], dtype="float32", offset=4),
            row(name="raw", dtype="|V16", offset=5), row(name="text", dtype="<U2", offset=4))
    attached = client.attach("x")
    assert np.asarray(attached["w"]).ndim == memoryview(attached["w"]).ndim == 32
    assert np.asarray(attached["strided"]).shape == (2, 3)
    assert np.asarray(attached["none"]).shape == (0, 7)


VALUES = [None, True, False, 0, 1, -1, 2, 3, 31, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, -2**63, 2**64,
          2**200, 1.5, 1e300, float("nan"), float("inf"), "", "w", "uint8", "float32", "<M8[ns]",
          "|V3", ">i4", "bfloat16", "<U1", "\0", "\ud800", [], [1], [2, 2], [0], [2**40, 0],
          [1] * 40, {}, {"a": 1}]


def mutate(chance, value):
    """The value, with something in it put in the place of something else."""
    if chance.random() < 0.25 or not isinstance(value, (dict, list)) or not value:
        return copy.deepcopy(chance.choice(VALUES))
    if isinstance(value, list):
        at = chance.randrange(len(value))
        what = chance.randrange(3)
        return (value[:at] + value[at + 1:] if what == 0 else value[:at] + [value[at]] + value[at:]
                if what == 1 else value[:at] + [mutate(chance, value[at])] + value[at + 1:])
    key = chance.choice(list(value))
    rest = {name: item for name, item in value.items() if name != key}
    if chance.random() < 0.1:
        return rest
    return {**rest, key: mutate(chance, value[key])}


def look_at_all_of_it(publication):
    value = publication.value
    for array in value.values() if isinstance(value, dict) else [value]:
        assert len(array.shape) <= 32 and array.nbytes < 2**63
        low, high = gpumem.arrays.extent(array.shape, array.strides, array.itemsize)
        assert array.size == 0 or 0 <= array.offset + low <= array.offset + high <= publication.nbytes
        if array.size < MIB and array.typestr is not None:
            assert np.asarray(array).shape == array.shape


def test_random_metadata(client, publish):
    """Ten thousand mutations of valid metadata: attached, and then sound, or DataLossError."""
    chance = random.Random(12)
    publish(row())
    handle = client.attach("x")._handle  # pylint: disable=protected-access
    rows = [row(), row(name="two", dtype="<i4", shape=[2, 3], strides=[12, 4], offset=64),
            row(name="none", shape=[0], segment=None)]
    good = [{"format": "gpumem-arrays/1", "single": False, "metadata": {"a": [1]}, "arrays": rows},
            {"format": "gpumem-arrays/1", "single": True, "metadata": None, "arrays": [row(name="")]},
            {"format": "gpumem-files/1", "files": [{"name": "a", "bytes": 5}]}]
    info = _gpumem.attachment_info(handle)
    outcomes = {"attached": 0, "refused": 0}

    class Attached(gpumem.Publication):
        """A publication with other metadata."""

        def _read(self):
            self.blob = blob
            return super()._read()

    for _ in range(10_000):
        said = chance.choice(good)
        for _ in range(chance.randrange(1, 4)):
            said = mutate(chance, said)
        blob = json.dumps(said).encode()
        if chance.random() < 0.05:
            at = chance.randrange(len(blob))
            blob = blob[:at] + bytes([chance.randrange(256)]) + blob[at + 1:]
        try:
            look_at_all_of_it(Attached("x", handle))
            outcomes["attached"] += 1
        except gpumem.DataLossError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 1000, outcomes
    assert info[4] == client.attach("x").blob


def test_metadata_that_json_has_no_word_for(client):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for metadata in (float("nan"), {"x": float("inf")}, object(), deep):
        with pytest.raises(gpumem.InvalidArgumentError, match="JSON cannot express"):
            client.publish("nan", np.ones(2), metadata=metadata)


# ---- Shapes --------------------------------------------------------------------------------------


def test_shapes_are_whole_numbers(client):
    for shape in ((1,) * 33, "12", b"12", 2.0, (2.7,), ("2",), {2: 1}, {2}, True, (True,), None, object(),
                  (1 << 62, 1 << 62), (1 << 63,), (-1,), (0, 1 << 62, 2)):
        for make in (client.empty, client.pool().empty):
            with pytest.raises(gpumem.InvalidArgumentError):
                make(shape, "float32")
    assert client.empty(np.int64(5)).shape == (5,)
    assert client.empty((np.int8(2), 3)).shape == (2, 3)
    assert client.empty([2, 3]).shape == (2, 3)
    assert client.empty(iter((2, 3))).shape == (2, 3)
    segment = client.acquire(MIB)
    for strides in ((1,), (1, 1.0), "11", (1, True), (1, 1 << 63), {1: 2, 3: 4}):
        with pytest.raises(gpumem.InvalidArgumentError):
            segment.array((2, 2), "uint8", strides=strides)
    for offset in (0.0, "0", None):
        with pytest.raises(gpumem.InvalidArgumentError):
            segment.array((2, 2), "uint8", offset=offset)


def test_the_extension_counts_dimensions_itself():
    for count in (33, 70, 100_000):
        with pytest.raises(ValueError, match="32 dimensions"):
            _gpumem.Memory(None, 0, 1, False, True, True, "B", 1, (1,) * count, (1,) * count)
    with pytest.raises(ValueError, match="at least one byte"):
        _gpumem.Memory(None, 0, 1, False, True, True, "B", 0, (1,), (1,))


def test_layouts_of_tickets_are_looked_at(client):
    segment = client.acquire(MIB)
    value = segment.share().value
    for shape, strides, offset in (((2,), (float("nan"),), 0), ((4,), (1.5,), 0), ((4,), (1,), 0.5),
                                   ((4,), (-1,), 0), ((1 << 63,), (0,), 0), ((4,), (1,), 2 * MIB - 2)):
        with pytest.raises((gpumem.InvalidArgumentError, gpumem.OutOfRangeError)):
            client.open(gpumem.Ticket(value, gpumem.Layout(shape, "uint8", strides, offset)))
    for wrong in (value + "\0junk", "gmt_\udc80", "gmt_ä", value + "\n"):
        with pytest.raises(gpumem.InvalidArgumentError, match="ticket"):
            client.open(wrong)
        with pytest.raises(gpumem.InvalidArgumentError, match="ticket"):
            client.open_many([wrong])
    with pytest.raises(ValueError, match="null"):
        _gpumem.open(client.handle, [value + "\0junk"], False, [], 0, 0, False)


def test_how_many_segments_at_once(client):
    for count in (0, -1, 254, (1 << 32) + 1):
        with pytest.raises(gpumem.InvalidArgumentError, match="from 1 to 253"):
            client.acquire_many(MIB, count)


# ---- Other libraries' arrays ---------------------------------------------------------------------


def test_the_order_of_bytes_is_kept(client):
    big = np.arange(3, dtype=">i4")
    assert client.empty(3, big.dtype).dtype == ">i4"
    copied = client.copy(big)
    assert np.asarray(copied).tolist() == [0, 1, 2] and copied.dtype == ">i4"
    assert np.asarray(gpumem.copy(np.arange(3, dtype="<i4")).view(big.dtype))[1] == 1 << 24
    assert gpumem.asarray(memoryview(big)).dtype == ">i4"
    with pytest.raises(BufferError, match="has no type for"):
        copied.__dlpack__()


@pytest.mark.parametrize("source, dtype, values", [
    (python_array.array("l", [1, -2]), "int64", [1, -2]), (python_array.array("L", [3]), "uint64", [3]),
    (python_array.array("d", [1.5]), "float64", [1.5]), ((ctypes.c_float * 2)(1, 2), "float32", [1, 2]),
    ((ctypes.c_uint16 * 2)(1, 2), "uint16", [1, 2]), ((ctypes.c_bool * 2)(1, 0), "bool", [True, False]),
    ((ctypes.c_int.__ctype_be__ * 2)(1, 2), ">i4", [1, 2]), (memoryview(b"ab").cast("c"), "|S1", [b"a", b"b"]),
    (memoryview(np.arange(2, dtype="complex64")), "complex64", [0, 1]), (bytearray(b"ab"), "uint8", [97, 98]),
    (memoryview(np.arange(2)), "int64", [0, 1])])
def test_formats_of_buffers(source, dtype, values):
    seen = gpumem.asarray(source)
    assert seen.dtype == dtype and np.asarray(seen).tolist() == values


def test_formats_that_are_unknown_are_refused():
    class Pair(ctypes.Structure):
        _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_float)]

    for source in ((Pair * 2)(), python_array.array("u", "ab"), (ctypes.c_void_p * 2)()):
        with pytest.raises(gpumem.InvalidArgumentError, match="format"):
            gpumem.asarray(source)


def interface(data, **changes):
    class Source:
        __array_interface__ = {"shape": (2,), "typestr": "|u1", "version": 3, "data": data, **changes}
    return Source()


def test_interfaces_with_a_buffer():
    base = bytearray(range(10))
    seen = gpumem.asarray(interface(base, offset=2))
    assert memoryview(seen).tolist() == [2, 3]
    base[2] = 77
    assert memoryview(seen).tolist() == [77, 3]
    assert memoryview(gpumem.asarray(interface(b"\1\2"))).tolist() == [1, 2]
    assert gpumem.asarray(interface(b"\1\2\3", shape=(3, 1))).shape == (3, 1)
    address = ctypes.addressof(ctypes.c_char.from_buffer(base))
    assert gpumem.asarray(interface((address, False), descr=None)).ptr == address
    for changes in ({"offset": 9}, {"offset": -1}, {"shape": (11,)}, {"strides": (-1,)}):
        with pytest.raises(gpumem.InvalidArgumentError):
            gpumem.asarray(interface(base, **changes))


def test_a_file_is_no_array_and_stays_open(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    with open(tmp_path / "file", "rb") as file:
        with pytest.raises(gpumem.InvalidArgumentError, match="is not an array"):
            gpumem.asarray(file)
        assert file.read() == b"abc"


def test_numpy_makes_no_object_of_types_that_it_does_not_have(client):
    with pytest.raises(TypeError, match="no type for bfloat16"):
        np.asarray(client.empty(3, "bfloat16"))
    place = gpumem.arrays.Place("GPU-x", "cuda", "vmm")
    with pytest.raises(TypeError, match="GPU's memory"):
        np.asarray(Array(None, 0, (0,), "float32", place=place))
    assert np.asarray(Array(None, 0, (0,), "float32", place=nowhere())).shape == (0,)


def test_blocks_are_shared_with_their_tenant(client):
    array = client.pool().empty(10)
    with pytest.raises(gpumem.InvalidArgumentError, match="same tenant"):
        client.share(array, scope="any")
    with pytest.raises(gpumem.InvalidArgumentError, match="neither"):
        client.share(array, scope="junk")
    assert client.share(array).value.startswith("gmb_")


def test_capsules_say_the_version_of_their_types(client):
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    for dtype, version in (("float32", (1, 0)), ("bfloat16", (1, 0)), ("float8_e4m3fn", (1, 1))):
        capsule = client.empty(4, dtype).__dlpack__(max_version=(1, 1))
        pointer = ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        assert tuple((ctypes.c_uint32 * 2).from_address(pointer)) == version
        assert gpumem.from_dlpack(capsule).dtype == dtype


def test_the_stream_of_a_block_is_that_of_its_arrays(client):
    pool = client.pool()
    block = pool.allocate(100, 5)
    assert block.array().stream == gpumem.asarray(block).stream == 5
    assert block.array(stream=7).stream == 7 and pool.empty(100, stream=6).stream == 6
    assert client.open(block.share()).array().stream is None


def test_the_stream_of_an_import_is_remembered(client, monkeypatch):
    monkeypatch.setattr(gpumem._cuda, "uuid_of", lambda ordinal: "GPU-x")
    array = client.empty(4)
    asked = []

    class Source:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, *, stream=None, max_version=None):
            asked.append(stream)
            return _gpumem.dlpack_export(array, 2, 0, 2, 32, max_version is not None)

    for given, told, then in ((77, 77, 77), (None, 1, 1), (1, 1, 1), (-1, -1, None)):
        seen = gpumem.from_dlpack(Source(), stream=given)
        assert seen.__cuda_array_interface__["stream"] == then and asked[-1] == told
    assert gpumem.from_dlpack(array).stream is None
