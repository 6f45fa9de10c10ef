# SPDX-License-Identifier: Apache-2.0
"""Publications of files, and the content ids of files."""
import hashlib
import json
import os

import gpumem
import numpy as np
import pytest
from conftest import charged, eventually

TYPES = {"<f4": "F32", "<i8": "I64", "|u1": "U8", "|b1": "BOOL", "<f2": "F16"}


def write_safetensors(path, tensors, metadata=None):
    """Writes a file of the format, independently of the library."""
    header = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, array in tensors.items():
        header[name] = {"dtype": TYPES[array.dtype.str], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture(name="model")
def _model(tmp_path):
    rng = np.random.default_rng(1)
    tensors = {"w": rng.standard_normal((300, 500)).astype("f4"),
               "none": np.zeros((0, 4), "i8"), "scalar": np.array(7, "i8"),
               "flags": np.array([True, False])}
    more = {"head": rng.standard_normal((7,)).astype("f2")}
    write_safetensors(tmp_path / "m-00001-of-00002.safetensors", tensors, {"format": "np"})
    write_safetensors(tmp_path / "m-00002-of-00002.safetensors", more)
    index = {"weight_map": {**{name: "m-00001-of-00002.safetensors" for name in tensors},
                            "head": "m-00002-of-00002.safetensors"}}
    path = tmp_path / "m.safetensors.index.json"
    path.write_text(json.dumps(index))
    return path, {**tensors, **more}


def test_tensors_of_files_are_arrays_by_name(client, model):
    path, tensors = model
    steps = []
    published = client.publish_files("m", path, progress=lambda *step: steps.append(step))
    assert (published.version, published.files, published.arrays) == (1, 2, 5)
    assert published.nbytes == sum(file.stat().st_size for file in path.parent.glob("*.safetensors"))
    assert steps[-1] == (published.nbytes, published.nbytes)
    publication = client.attach("m")
    assert list(publication) == list(tensors)
    for name, tensor in tensors.items():
        array = np.asarray(publication[name])
        assert array.dtype == tensor.dtype and array.shape == tensor.shape, name
        assert array.tobytes() == tensor.tobytes(), name
    assert publication.metadata == {"format": "np"}
    assert len(publication.segments) == 1
    del array
    publication.close()
    assert client.unpublish("m") == 1
    eventually(lambda: charged(client) == 0, "the memory comes back")


def test_other_files_are_bytes(client, tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"a b c")
    client.publish_files("v", [tmp_path / "vocab.txt"], checksums=False)
    assert bytes(gpumem.attach("v")["vocab.txt"]) == b"a b c"
    client.unpublish("v")


def test_an_exception_of_progress_ends_the_call(client, model):
    def stop(done, total):
        raise KeyError("enough")
    with pytest.raises(KeyError, match="enough"):
        client.publish_files("m", model[0], progress=stop)
    assert client.publications() == []
    eventually(lambda: charged(client) == 0, "nothing is held")


@pytest.mark.parametrize("damage, what", [
    (lambda data: data[:-1], "outside the file"),
    (lambda data: data + b"x", "bytes behind"),
    (lambda data: b"\xff" * 8 + data[8:], "too large"),
    (lambda data: data.replace(b'"F32"', b'"F99"'), "is unknown"),
])
def test_lying_files_are_refused(client, tmp_path, damage, what):
    path = write_safetensors(tmp_path / "a.safetensors", {"a": np.zeros(3, "f4")})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(gpumem.InvalidArgumentError, match=what):
        client.publish_files("m", path)
    assert charged(client) == 0


def test_files_that_have_changed_since_their_id_are_refused(client, model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = gpumem.content_id(model[0])
    client.publish_files("m", model[0], files_id=found, content_id=b"one")
    publication = client.attach_or_claim("m", b"one")
    assert isinstance(publication, gpumem.Publication) and publication.content_id == b"one"
    publication.close()
    write_safetensors(tmp_path / "m-00002-of-00002.safetensors", {"head": np.ones(7, "f2")})
    with pytest.raises(gpumem.AbortedError, match="have changed"):
        client.publish_files("m", model[0], files_id=found, content_id=b"one")
    with pytest.raises(gpumem.InvalidArgumentError, match="files_id"):
        client.publish_files("m", model[0], files_id=b"short")
    client.unpublish("m")
    assert gpumem.content_id(tmp_path) == gpumem.content_id(model[0]) != found


def test_missing_files_are_named(client, model, tmp_path):
    os.unlink(tmp_path / "m-00002-of-00002.safetensors")
    for paths in (model[0], tmp_path / "m-00001-of-00002.safetensors"):
        with pytest.raises(gpumem.NotFoundError, match="m-00002-of-00002.safetensors"):
            client.publish_files("m", paths)
    with pytest.raises(gpumem.InvalidArgumentError, match="unknown format"):
        client.publish_files("m", model[0], format="pickle")


def test_content_ids_are_those_of_the_reference(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chunk = 4 << 20
    a, b = b"1" * (chunk + 3), b"2"
    (tmp_path / "b").write_bytes(b)
    (tmp_path / "a").write_bytes(a)

    def sha(data):
        return hashlib.sha256(data).digest()

    def of_file(data):
        return sha(b"".join(sha(data[i:i + chunk]) for i in range(0, len(data), chunk)))

    expected = sha(b"gpumem-content/1\n" + b"".join(
        f"{len(data)} {name}\0".encode() + of_file(data) for name, data in (("a", a), ("b", b))))
    assert gpumem.content_id([tmp_path / "b", tmp_path / "a"]) == expected
    assert gpumem.content_id(str(tmp_path / "a")) != expected
    with pytest.raises(gpumem.NotFoundError):
        gpumem.content_id(tmp_path / "none")


def test_content_ids_of_unchanged_files_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a").write_bytes(b"1")
    changed = os.stat(tmp_path / "a").st_ctime
    # A file that has just changed is not cached: wait until it is not new any more.
    hashes = tmp_path / "cache/gpumem/file-hashes"
    eventually(lambda: gpumem.content_id(tmp_path / "a") and hashes.exists() and os.listdir(hashes),
               f"the change at {changed} is long ago")
    first = gpumem.content_id(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"2")
    assert gpumem.content_id(tmp_path / "a") != first
