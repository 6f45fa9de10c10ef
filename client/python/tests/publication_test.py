# SPDX-License-Identifier: Apache-2.0
"""Publications: arrays under a name, in processes that come later."""
import json

import gpumem
import numpy as np
import pytest
from conftest import MIB, charged, eventually, run_python


def test_arrays_are_the_same_in_another_process(client, daemon):
    arrays = {
        "ours": np.asarray(client.empty((2, 3), "float32")),
        "numpy": np.arange(6, dtype="int64").reshape(2, 3),
        "transposed": np.arange(6, dtype="<u2").reshape(2, 3).T,
        "sliced": np.arange(20, dtype="float64")[::3],
        "big endian": np.arange(3, dtype=">i4"),
        "scalar": np.float32(2.5),
        "empty": np.zeros((0, 7), "int8"),
        "bytes": b"bytes",
        "bool": np.array([True, False]),
    }
    arrays["ours"][:] = 1.5
    version = gpumem.publish("weights", arrays, metadata={"step": 7})
    assert version == 1
    said = run_python("""
import gpumem, json, numpy
arrays = gpumem.attach("weights")
print(json.dumps({name: [numpy.asarray(array).dtype.str, list(array.shape),
                         numpy.asarray(array).tolist()] for name, array in arrays.items()}))
""", runtime_dir=daemon.runtime_dir)
    seen = json.loads(said)
    assert list(seen) == list(arrays)
    for name, array in arrays.items():
        array = np.frombuffer(array, "u1") if name == "bytes" else np.asarray(array)
        assert seen[name] == [array.dtype.str, list(array.shape), array.tolist()], name
    publication = client.attach("weights")
    assert publication.metadata == {"step": 7} and not publication.single
    assert publication.frameworks["numpy"] == "numpy" and publication.frameworks["bytes"] == "python"
    assert publication["transposed"].strides == arrays["transposed"].strides
    assert json.loads(publication.blob)["format"] == "gpumem-arrays/1"
    # Arrays in a segment are published without a copy; the rest is in one other segment.
    assert len(publication.segments) == 2
    assert charged(client) == 4 * MIB
    listed = client.publications()
    assert [(info.name, info.version, info.segments) for info in listed] == [("weights", 1, 2)]
    assert listed[0].publisher_name == "pytest" and listed[0].publisher_alive
    eventually(lambda: client.publications()[0].attached_sessions == 1, "the other has ended")
    del publication
    assert client.unpublish("weights") == 1


def test_one_array_attaches_as_one(client):
    assert client.publish("one", np.arange(5)) == 1
    array = gpumem.attach("one")
    assert np.asarray(array).tolist() == [0, 1, 2, 3, 4]
    assert isinstance(array.owner, gpumem.Publication) and array.owner.single
    assert array.readonly and not np.asarray(array).flags.writeable


def test_versions_are_whole(client):
    client.publish("v", np.zeros(4, "int32"))
    first = gpumem.attach("v")
    assert client.publish("v", np.ones(4, "int32")) == 2
    assert np.asarray(first).tolist() == [0] * 4
    second = client.attach("v", version=2)
    assert second.version == 2 and np.asarray(second.value).tolist() == [1] * 4
    with pytest.raises(gpumem.NotFoundError, match="has version 2, not 3"):
        client.attach("v", version=3)
    with pytest.raises(gpumem.DeadlineExceededError):
        client.attach("v", version=3, wait=0.01)
    with pytest.raises(LookupError):
        client.attach("none")
    with pytest.raises(TimeoutError):
        client.attach("none", wait=0.01)


def test_it_outlives_its_publisher(client, daemon):
    run_python("""
import gpumem, numpy
gpumem.publish("left", {"a": numpy.arange(1000)})
gpumem.publish("gone", numpy.arange(1000), ephemeral=True)
""", runtime_dir=daemon.runtime_dir)
    assert np.asarray(gpumem.attach("left")["a"]).sum() == 499500
    # The daemon hears of a process's end by and by.
    eventually(lambda: [info.name for info in client.publications()] == ["left"], "one has ended")
    client.unpublish("left")
    eventually(lambda: charged(client) == 0, "all is given back")


def test_attached_arrays_keep_it(client):
    client.publish("kept", np.arange(8))
    with client.attach("kept") as publication:
        seen = np.asarray(publication.value)
        with pytest.raises(gpumem.FailedPreconditionError, match="in use"):
            publication.close()
    assert publication.closed
    client.unpublish("kept")
    assert seen.sum() == 28 and charged(client) > 0
    del seen
    assert charged(client) == 0
    with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
        publication["" if publication.single else "a"]  # pylint: disable=expression-not-assigned


def test_writable_attachments_write_for_all(client):
    client.publish("shared", np.zeros(4, "int32"))
    writer = client.attach("shared", writable=True).value
    reader = gpumem.attach("shared")
    np.asarray(writer)[:] = 5
    assert np.asarray(reader).tolist() == [5] * 4


def test_other_tenants_attach_where_they_may(client, daemon):
    client.publish("mine", np.arange(3))
    client.publish("any", np.arange(3), access="any")
    with gpumem.connect(daemon.runtime_dir, tenant="other") as other:
        assert np.asarray(other.attach("python/any").value).tolist() == [0, 1, 2]
        with pytest.raises((gpumem.PermissionDeniedError, gpumem.NotFoundError)):
            other.attach("python/mine")
        assert [info.name for info in other.publications("python")] == ["any"]


def test_what_the_command_line_publishes(client, daemon):
    (daemon.folder / "one.bin").write_bytes(b"first file")
    (daemon.folder / "two.bin").write_bytes(bytes(range(256)))
    daemon.ctl("publish", "files", "--file", str(daemon.folder / "one.bin"),
               str(daemon.folder / "two.bin"))
    publication = client.attach("files")
    assert list(publication) == ["one.bin", "two.bin"]
    assert bytes(memoryview(publication["one.bin"])) == b"first file"
    assert bytes(memoryview(publication["two.bin"])) == bytes(range(256))
    # The other way round: gpumemctl shows and fetches Python's publications.
    client.publish("arrays", {"a": np.arange(4, dtype="u1")})
    shown = json.loads(daemon.ctl("publications", "--json"))
    assert "arrays" in json.dumps(shown)
    folder = daemon.folder / "fetched"
    folder.mkdir()
    daemon.ctl("fetch", "arrays", "--out", str(folder))
    assert [file.read_bytes()[:4] for file in folder.iterdir()] == [bytes(range(4))]


@pytest.mark.parametrize("blob", [
    b'{"format":"gpumem-arrays/1"}', b'{"format":"gpumem-arrays/1","single":false,"arrays":[{}]}',
    b'{"format":"gpumem-files/1","files":[{"name":"a","bytes":99999999}]}',
    *(json.dumps({"format": "gpumem-arrays/1", "single": True, "arrays": [
        {"name": "", "dtype": "uint8", "shape": [4], "strides": None, "segment": 0, "offset": 0,
         "framework": "x", **wrong}]}).encode() for wrong in (
             {"offset": 2 * MIB}, {"offset": -1}, {"segment": 1}, {"segment": -1}, {"shape": [-4]},
             {"shape": [1 << 40]}, {"strides": [MIB]}, {"strides": [-1]}, {"strides": [1, 1]},
             {"dtype": "none"}, {"offset": 0.5}, {"segment": 0.0}, {"shape": [0, 1 << 70]}, {"segment": None}, {"shape": None}, {"strides": "x"}))])
def test_metadata_that_lies_is_refused(client, blob):
    segment = client.acquire(MIB)
    gpumem._gpumem.publish(client.handle, "lies", [segment.handle], blob, 0, False, 0, 0, b"")
    with pytest.raises(gpumem.DataLossError, match="not well-formed"):
        client.attach("lies")


@pytest.mark.parametrize("blob", [b"", b"\xff\x00", b"[1]", b"{}", b'{"format":"other"}'])
def test_others_metadata_is_theirs(client, blob):
    segment = client.acquire(MIB)
    memoryview(segment)[:2] = b"hi"
    gpumem._gpumem.publish(client.handle, "others", [segment.handle], blob, 0, False, 0, 0, b"")
    publication = client.attach("others")
    assert len(publication) == 0 and publication.blob == blob and publication.arrays == {}
    assert bytes(memoryview(publication.segments[0])[:2]) == b"hi"


def test_what_cannot_be_published(client):
    for value, match in (({1: np.zeros(3)}, "must be str"), (np.zeros(0), "nothing to publish"),
                         ({}, "nothing to publish"), ("text", "is not an array"),
                         ({"a": [1, 2]}, "is not an array")):
        with pytest.raises(gpumem.InvalidArgumentError, match=match):
            client.publish("wrong", value)
    with pytest.raises(gpumem.InvalidArgumentError, match="JSON"):
        client.publish("wrong", np.zeros(3), metadata=object())
    with pytest.raises(gpumem.InvalidArgumentError):
        client.publish("no name!", np.zeros(3))
    with pytest.raises(gpumem.ResourceExhaustedError):
        client.publish("large", np.zeros(65 * MIB, "u1"))
    assert client.publications() == []


def test_it_expires(client):
    client.publish("short", np.arange(3), expire_after=0.05)
    listed = client.publications()
    assert listed == [] or listed[0].expire_after == 0.05
    eventually(lambda: client.publications() == [], "it expires")
