# SPDX-License-Identifier: Apache-2.0
"""client.publish_files(): .npy, .npz, GGUF and PyTorch's checkpoints, and files that lie."""
import io
import itertools
import os
import pickle
import random
import struct
import zipfile

import gpumem
import numpy as np
import pytest
from conftest import MIB, charged
from gpumem._formats import gguf, npy
from gpumem.serving import load_or_attach
from fixtures import REAL, _daemon, _torch, values, write_safetensors  # noqa: F401

ARRAYS = {"f4": np.arange(6, dtype="float32").reshape(2, 3), "i8": np.arange(5),
          "fortran": np.asfortranarray(np.arange(24, dtype="<u2").reshape(2, 3, 4)),
          "bool": np.array([True, False]), "scalar": np.array(2.5), "none": np.zeros((0, 3), "f2"),
          "big": np.arange(3, dtype=">i4"), "c": np.ones(3, "complex64"), "bytes": np.array([b"ab"])}


@pytest.fixture(name="client")
def _client(torch):
    del torch
    return gpumem.default_client()


def publish(client, *paths, **options):
    """Publishes files as "m", and returns the publication. Bad files are refused before memory is
    taken."""
    before = charged(client)
    try:
        published = client.publish_files("m", [str(path) for path in paths], **options)
    except gpumem.InvalidArgumentError:
        assert charged(client) <= before
        raise
    found = client.attach("m")
    assert published.version == found.version and published.arrays == len(found)
    return found


# ---- NumPy


def test_npy(client, tmp_path):
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    told = []
    found = publish(client, *tmp_path.iterdir(), progress=lambda *said: told.append(said))
    for name, array in ARRAYS.items():
        assert np.array_equal(np.asarray(found[name]), array), name
        assert found[name].strides == array.strides or array.size <= 1, name
    total = sum(array.nbytes for array in ARRAYS.values())
    assert told[-1] == (total, total)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(client, tmp_path, save):
    large = np.arange(3 * MIB, dtype="int32")
    save(tmp_path / "x.npz", **ARRAYS, large=large)
    found = publish(client, tmp_path / "x.npz")
    assert sorted(found) == sorted([*ARRAYS, "large"])
    for name, array in {**ARRAYS, "large": large}.items():
        assert np.array_equal(np.asarray(found[name]), array), name
    weights = load_or_attach("w", tmp_path / "x.npz", framework="numpy")
    assert weights.loaded and np.array_equal(weights["large"], large)
    assert not load_or_attach("w", tmp_path / "x.npz", framework="numpy").loaded


def header(text, version=1, length=None):
    said = text.encode()
    said = said if length is None else said[:length]
    count = len(said) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + count.to_bytes(2 if version == 1 else 4,
                                                               "little") + said


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"


@pytest.mark.parametrize("text", [
    GOOD, GOOD + " " * 30 + "\n", GOOD.replace(", }", "}"), GOOD.replace("'", '"'),
    "{'shape':(2,3),'descr':'<f4','fortran_order':False}"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_of_npy(text, version):
    found = npy.read_header(io.BytesIO(header(text, version)))
    assert (found.dtype, found.shape, found.strides, found.nbytes) == ("float32", (2, 3), None, 24)


@pytest.mark.parametrize("said", [
    b"", b"\x93NUMPY", b"\x93NUMPY\x04\x00" + bytes(9), b"\x93NUMPY\x01\x01" + bytes(9),
    header(GOOD)[:-1], header(GOOD, version=2, length=1 << 31), header("x" * 10001),
    header(GOOD.replace("<f4", "|O")), header(GOOD.replace("<f4", "|O8")),
    header(GOOD.replace("'<f4'", "[('a', '<f4')]")), header(GOOD.replace("<f4", "")),
    header(GOOD.replace("False", "0")), header(GOOD.replace("(2, 3)", "(-2, 3)")),
    header(GOOD.replace("(2, 3)", "2")), header(GOOD.replace("(2, 3)", "(2.0, 3)")),
    header(GOOD.replace("(2, 3)", "(" + "9" * 25 + ",)")),
    header(GOOD.replace("(2, 3)", "(" + "1," * 40 + ")")), header(GOOD.replace("(2, 3)", "(" * 900)),
    header(GOOD.replace("'shape'", "'descr'")), header(GOOD.replace(", }", ", 'x': 1}")),
    header(GOOD.replace("{", "{**")), header("{}"), header("__import__('os')"), header("[" * 5000),
    header(GOOD.replace("(2, 3)", f"({1 << 62}, {1 << 62})"))],
    ids=itertools.count())
def test_bad_headers_of_npy(said):
    with pytest.raises(gpumem.InvalidArgumentError):
        npy.read_header(io.BytesIO(said))


def test_npy_of_another_size(client, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100))
    said = (tmp_path / "a.npy").read_bytes()
    for wrong in (said[:-1], said + b"x", said.replace(b"(100,)", b"(999,)")):
        (tmp_path / "a.npy").write_bytes(wrong)
        with pytest.raises(gpumem.InvalidArgumentError, match="a.npy"):
            publish(client, tmp_path / "a.npy")
    np.save(tmp_path / "o.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(gpumem.InvalidArgumentError):
        publish(client, tmp_path / "o.npy")


def zipped(path, members, **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, said in members:
            archive.writestr(name, said)
    return path


def test_bad_npz(client, tmp_path):
    path = tmp_path / "x.npz"
    good = header(GOOD) + bytes(24)
    for members in ([("a.npy", good[:-1])], [("a.npy", good + b"x")], [("a.txt", good)],
                    [("a.npy", b"")], [("\n.npy", good)], [(".npy", good)],
                    [("a.npy", header(GOOD.replace("(2, 3)", f"({1 << 50},)")) + bytes(24))]):
        with pytest.raises(gpumem.InvalidArgumentError):
            publish(client, zipped(path, members))
    with pytest.warns(UserWarning, match="Duplicate"):
        zipped(path, [("a.npy", good), ("a.npy", good)])
    with pytest.raises(gpumem.InvalidArgumentError, match="the name 'a'"):
        publish(client, path)
    path.write_bytes(b"PK" + bytes(100))
    with pytest.raises(gpumem.InvalidArgumentError, match="no .npz"):
        publish(client, path)
    # Damaged bytes are found by their checksum, and all memory is given back.
    zipped(path, [("a.npy", header(GOOD.replace("2, 3", "1000, 1000")) + bytes(4000000))])
    said = bytearray(path.read_bytes())
    said[2000000] ^= 1
    path.write_bytes(said)
    with pytest.raises(gpumem.DataLossError):
        publish(client, path)


def test_npz_by_random_changes(client, tmp_path):
    """Whatever a file says, the call ends with an error of the package, or with the file's arrays."""
    random.seed(7)
    np.savez(tmp_path / "good.npz", a=np.arange(50), b=np.ones((3, 3)))
    good = (tmp_path / "good.npz").read_bytes()
    for _ in range(150):
        said = bytearray(good)
        for _ in range(random.randrange(1, 4)):
            said[random.randrange(len(said))] = random.randrange(256)
        path = tmp_path / "x.npz"
        path.write_bytes(said[:random.choice([len(said), random.randrange(len(said))])])
        try:
            publish(client, path)
        except (gpumem.InvalidArgumentError, gpumem.DataLossError):
            continue
        client.unpublish("m")


# ---- GGUF


def text(said):
    said = said.encode()
    return struct.pack("<Q", len(said)) + said


KEYS = [("general.name", 8, text("small")), ("general.alignment", 4, struct.pack("<I", 64)),
        ("rope.base", 6, struct.pack("<f", 1e4)), ("causal", 7, b"\x01"),
        ("tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("b") + text("c")),
        ("many", 9, struct.pack("<IQ", 5, 1000) + bytes(4000)),
        ("nested", 9, struct.pack("<IQ", 9, 2) + 2 * struct.pack("<IQB", 0, 1, 7)),
        ("long", 8, text("x" * 5000)), ("nan", 12, struct.pack("<d", float("nan")))]
# Name, sizes (the first is that of adjacent elements), type, bytes.
TENSORS = [("norm", (6,), 0, np.arange(6, dtype="float32").tobytes()),
           ("plain", (3, 2), 30, np.arange(6, dtype="int16").tobytes()),
           ("blocks", (512, 3), 12, bytes(range(144)) * 6), ("old", (32,), 8, bytes(34))]


def gguf_file(keys=KEYS, tensors=TENSORS, alignment=64, version=3, counts=None, offsets=None):
    said = struct.pack("<4sIQQ", b"GGUF", version, *(counts or (len(tensors), len(keys))))
    for key, kind, value in keys:
        said += text(key) + struct.pack("<I", kind) + value
    data = b""
    for index, (name, sizes, kind, content) in enumerate(tensors):
        data += bytes(-len(data) % alignment)
        place = len(data) if offsets is None else offsets[index]
        said += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, place)
        data += content
    return said + bytes(-len(said) % alignment) + data


@pytest.mark.parametrize("version", [2, 3])
def test_gguf(client, tmp_path, version):
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_file(version=version))
    found = publish(client, path)
    assert {name: (array.dtype, array.shape) for name, array in found.items()} == {
        "norm": ("float32", (6,)), "plain": ("bfloat16", (2, 3)), "blocks": ("uint8", (3, 288)),
        "old": ("uint8", (34,))}
    assert np.asarray(found["norm"]).tolist() == list(range(6))
    assert bytes(memoryview(found["blocks"])) == bytes(range(144)) * 6
    said = found.metadata["gguf"]
    assert said["tensors"] == {"norm": ["F32", [6]], "plain": ["BF16", [2, 3]],
                               "blocks": ["Q4_K", [3, 512]], "old": ["Q8_0", [32]]}
    assert said["keys"] == {"general.name": "small", "general.alignment": 64, "rope.base": 1e4,
                            "causal": True, "tokens": ["a", "b", "c"], "nested": [[7], [7]]}
    weights = load_or_attach("w", path)
    assert values(weights["plain"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert weights.metadata["gguf"]["tensors"]["blocks"][0] == "Q4_K"


def tensor(name="a", sizes=(6,), kind=0, content=bytes(24)):
    return name, sizes, kind, content


@pytest.mark.parametrize("said", [
    b"", b"GGUF", b"GGML" + gguf_file()[4:], gguf_file(version=1), gguf_file(version=4),
    gguf_file(version=3 << 24), gguf_file()[:-1], gguf_file()[:200],
    gguf_file(counts=(1 << 40, 0)), gguf_file(counts=(0, 1 << 40)), gguf_file(counts=(0, 0)),
    gguf_file(counts=(5, 9)), gguf_file(keys=KEYS + KEYS[:1]),
    gguf_file(keys=[("general.alignment", 4, struct.pack("<I", 0))]),
    gguf_file(keys=[("general.alignment", 4, struct.pack("<I", 48))]),
    gguf_file(keys=[("general.alignment", 4, struct.pack("<I", 1 << 31))]),
    gguf_file(keys=[("general.alignment", 8, text("64"))]),
    gguf_file(keys=[("k", 13, b"")]), gguf_file(keys=[("k", 7, b"\x02")]),
    gguf_file(keys=[("k", 8, struct.pack("<Q", 1 << 63))]),
    gguf_file(keys=[("k", 9, struct.pack("<IQ", 0, 1 << 63))]),
    gguf_file(keys=[("k", 9, struct.pack("<IQ", 8, 1 << 63))]),
    gguf_file(keys=[("k", 9, struct.pack("<IQ", 77, 1))]),
    gguf_file(keys=[("k", 9, struct.pack("<IQ", 9, 1) * 9)]),
    gguf_file(tensors=[tensor(), tensor()]), gguf_file(tensors=[tensor(name="")]),
    gguf_file(tensors=[tensor(name="a\n")]), gguf_file(tensors=[tensor(name="x" * 1025)]),
    gguf_file(tensors=[tensor(sizes=())]), gguf_file(tensors=[tensor(sizes=(1,) * 5)]),
    gguf_file(tensors=[tensor(sizes=(0,))]), gguf_file(tensors=[tensor(sizes=(7,))]),
    gguf_file(tensors=[tensor(sizes=(1 << 62, 4))]), gguf_file(tensors=[tensor(sizes=(1 << 63,) * 4)]),
    gguf_file(tensors=[tensor(kind=4)]), gguf_file(tensors=[tensor(kind=12)]),
    gguf_file(offsets=[0, 0, 64, 1024]), gguf_file(offsets=[1, 64, 128, 1024]),
    gguf_file(offsets=[0, 64, 128, 1 << 40]), gguf_file(offsets=[0, 64, 128, (1 << 64) - 64])],
    ids=itertools.count())
def test_bad_gguf(client, tmp_path, said):
    path = tmp_path / "x.gguf"
    path.write_bytes(said)
    with pytest.raises(gpumem.InvalidArgumentError, match="x.gguf"):
        publish(client, path)


def test_gguf_by_random_changes():
    """Whatever a file says, it is refused, or all tensors lie inside it."""
    random.seed(11)
    good = gguf_file()
    end = len(good) - sum(len(content) for _, _, _, content in TENSORS)
    passed = 0
    for _ in range(6000):
        said = bytearray(good)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(end)
            if random.random() < 0.3:
                said[at:at + 8] = struct.pack("<Q", random.choice([0, 1, 1 << 31, (1 << 64) - 1,
                                                                   1 << 63, len(good), 65536]))
            else:
                said[at] = random.randrange(256)
        said = said[:random.choice([len(said), len(said), random.randrange(len(said))])]
        try:
            found = gguf.parse(io.BytesIO(said), len(said))
        except gpumem.InvalidArgumentError:
            continue
        passed += 1
        for array in found.arrays.values():
            count = np.dtype("V2" if array.dtype == "bfloat16" else array.dtype).itemsize
            assert count * int(np.prod([int(size) for size in array.shape])) == array.nbytes
            assert 0 <= array.offset <= array.offset + array.nbytes <= len(said)
    assert passed > 100


def test_sizes_of_blocks_are_those_of_the_format():
    constants = pytest.importorskip("gguf.constants")
    for number, (name, elements, nbytes, _) in gguf._TYPES.items():
        kind = constants.GGMLQuantizationType(number)
        assert kind.name == name and constants.GGML_QUANT_SIZES[kind] == (elements, nbytes)


# ---- PyTorch's checkpoints


needs_torch = pytest.mark.skipif(not REAL, reason="needs PyTorch")


@needs_torch
def test_a_checkpoint(client, tmp_path):
    import torch
    tied = torch.arange(12.0).reshape(3, 4)
    state = {"a": tied, "b": tied, "view": tied.t(), "half": torch.ones(3, dtype=torch.bfloat16),
             "none": torch.ones(0), "scalar": torch.tensor(7), "bool": torch.tensor([True])}
    if hasattr(torch, "float8_e4m3fn"):
        state["eight"] = torch.ones(4).to(torch.float8_e4m3fn)
    torch.save(state, tmp_path / "x.pt")
    torch.save({"more": torch.ones(2)}, tmp_path / "y.bin")
    weights = load_or_attach("m", [tmp_path / "x.pt", tmp_path / "y.bin"])
    assert sorted(weights) == sorted([*state, "more"])
    for name, one in state.items():
        assert weights[name].dtype == one.dtype and weights[name].shape == one.shape
        assert torch.equal(weights[name].float(), one.float()), name
    assert weights["a"].data_ptr() == weights["b"].data_ptr()
    torch.save(state, tmp_path / "z.pth")
    with pytest.raises(gpumem.InvalidArgumentError, match="earlier file"):
        client.publish_files("m", [tmp_path / "x.pt", tmp_path / "z.pth"])


class Evil:
    def __reduce__(self):
        return os.system, ("touch " + os.environ["GPUMEM_EVIL"],)


@needs_torch
def test_checkpoints_are_never_unpickled_otherwise(client, tmp_path, monkeypatch):
    import torch
    monkeypatch.setenv("GPUMEM_EVIL", str(tmp_path / "evil"))
    torch.save({"a": Evil()}, tmp_path / "new.pt")
    torch.save({"a": Evil()}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.bin").write_bytes(pickle.dumps({"a": Evil()}))
    (tmp_path / "none.pth").write_bytes(b"")
    zipped(tmp_path / "zip.pt", [("archive/data.pkl", pickle.dumps(Evil()))])
    torch.save({"a": {"b": torch.ones(1)}}, tmp_path / "nested.pt")
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    torch.save({}, tmp_path / "empty.pt")
    torch.save({"a": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    torch.save({5: torch.ones(1)}, tmp_path / "number.pt")
    for path in sorted([*tmp_path.glob("*.pt"), *tmp_path.glob("*.bin"), *tmp_path.glob("*.pth")]):
        with pytest.raises(gpumem.InvalidArgumentError):
            publish(client, path)
    assert not (tmp_path / "evil").exists()


# ---- All of them


def test_files_of_several_formats(client, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    write_safetensors(tmp_path / "b.safetensors", {"x": np.arange(3)})
    with pytest.raises(gpumem.InvalidArgumentError, match="several formats"):
        publish(client, tmp_path / "a.npy", tmp_path / "b.safetensors")
    with pytest.raises(gpumem.InvalidArgumentError, match="unknown format"):
        publish(client, tmp_path / "a.npy", format="other")
    np.savez(tmp_path / "c.npz", a=np.arange(3))
    for paths in (["c.npz", "c.npz"], ["a.npy", "a.npy"]):
        with pytest.raises(gpumem.InvalidArgumentError, match="two files"):
            publish(client, *(tmp_path / path for path in paths))
    (tmp_path / "d").mkdir()
    np.savez(tmp_path / "d" / "e.npz", a=np.arange(3))
    with pytest.raises(gpumem.InvalidArgumentError, match="earlier file"):
        publish(client, tmp_path / "c.npz", tmp_path / "d" / "e.npz")
    with pytest.raises(gpumem.NotFoundError):
        publish(client, tmp_path / "none.npy")


def test_what_has_no_room(client, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(65 * MIB, "u1"))
    with pytest.raises(gpumem.ResourceExhaustedError):
        publish(client, tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros(40 * MIB, "u1"))

    def stop(done, total):
        assert done <= total == 40 * MIB
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        publish(client, tmp_path / "a.npy", progress=stop)
    assert client.publications() == []
