# SPDX-License-Identifier: Apache-2.0
"""gpumem.serving.load_or_attach(): one process loads, all of them map the same memory."""
import gc
import json
import os
import signal

import gpumem
import gpumem.serving
import numpy as np
import pytest
from conftest import MIB, charged, eventually
from gpumem.serving import load_or_attach
from serving_fixtures import (_daemon, _torch, finish, start, tensor, values,  # noqa: F401
                              write_safetensors)


def some(torch, seed=1):
    return {"w": tensor(torch, np.full((256, 1024), seed, "float32")),
            "b": tensor(torch, np.arange(6, dtype="int64"))}


def test_a_loader_loads_once(torch):
    calls = []

    def loader():
        calls.append(1)
        return some(torch)

    first = load_or_attach("m", loader, content_id="one")
    second = load_or_attach("m", loader, content_id="one")
    assert calls == [1] and first.loaded and not second.loaded
    assert first.version == second.version and first.content_id == b"one"
    assert first.name == "m" and not first.writable and first.nbytes == 2 * MIB
    assert sorted(second) == ["b", "w"] and len(second) == 2
    assert np.array_equal(values(second["w"]), np.full((256, 1024), 1))
    assert first["w"].data_ptr() != second["w"].data_ptr()  # two mappings
    # One copy: neither the one that has loaded nor a further worker adds any.
    eventually(lambda: charged(gpumem.default_client()) == 2 * MIB, "it is held once")


def test_other_content_is_never_taken_for_it(torch):
    one = load_or_attach("m", lambda: some(torch, 1), content_id="one")
    other = load_or_attach("m", lambda: some(torch, 2), content_id=b"other")
    assert other.loaded and other.version == one.version + 1
    assert values(one["w"])[0, 0] == 1 and values(other["w"])[0, 0] == 2
    # Whose the name is now.
    assert load_or_attach("m", dict, content_id="other").version == other.version


def test_a_loader_needs_a_content_id(torch):
    for wrong in ({}, {"content_id": b""}, {"content_id": ""}):
        with pytest.raises(gpumem.InvalidArgumentError, match="content_id"):
            load_or_attach("m", lambda: some(torch), **wrong)
    del torch


def test_a_loader_that_fails_gives_the_claim_up(torch):
    def fails():
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        load_or_attach("m", fails, content_id="one")
    assert gpumem.default_client().publications() == []
    assert load_or_attach("m", lambda: some(torch), content_id="one", wait=0).loaded


@pytest.mark.parametrize("wrong", [5, [1], {"a": 5}, {5: None}, [("a", 5)], None,
                                   [("a", "b", "c")]])
def test_loaders_of_no_tensors(torch, wrong):
    del torch
    with pytest.raises(gpumem.InvalidArgumentError):
        load_or_attach("m", lambda: wrong, content_id="one")
    assert gpumem.default_client().publications() == []


def test_tensors_one_after_another(torch):
    # The buffer is used again, and one tensor is tied to another.
    buffer = tensor(torch, np.zeros(1000, "float32"))
    tied = tensor(torch, np.arange(MIB, dtype="float32"))

    def loader():
        yield "tied.one", tied
        for number in range(5):
            values(buffer)[...] = number
            yield f"layer.{number}", buffer
        yield "tied.other", tied
        yield "none", tied[:0]
        yield "scalar", tensor(torch, np.float32(2.5))
        yield "half", tensor(torch, np.arange(6, dtype="int16"), "bfloat16")

    told = []
    weights = load_or_attach("m", loader, content_id="one", progress=lambda *said: told.append(said))
    for number in range(5):
        assert (values(weights[f"layer.{number}"]) == number).all()
    assert weights["tied.one"].data_ptr() == weights["tied.other"].data_ptr()
    assert values(weights["tied.other"])[-1] == MIB - 1
    assert tuple(weights["none"].shape) == (0,) and tuple(weights["scalar"].shape) in ((), (1,))
    assert weights["half"].dtype == torch.bfloat16
    assert values(weights["half"]).tolist() == list(range(6))
    assert told[0] == (4 * MIB, 0) and told[-1][0] > 4 * MIB
    # The segment for tensors to come has gone: 4 MiB and a little more.
    del buffer, tied
    gc.collect()
    eventually(lambda: charged(gpumem.default_client()) <= 6 * MIB, "no more is held")
    with pytest.raises(gpumem.InvalidArgumentError, match="two tensors"):
        load_or_attach("n", lambda: iter([("a", weights["half"])] * 2), content_id="one")


def test_tensors_of_several_segments(torch):
    count = 9

    def loader():
        for number in range(count):
            yield str(number), tensor(torch, np.full(MIB, number, "float32"))

    weights = load_or_attach("m", loader, content_id="one")
    assert all((values(weights[str(number)]) == number).all() for number in range(count))
    assert weights.nbytes <= 4 * MIB * count + 2 * MIB


# An engine's layers at 1/64 of their size, each with the size of a tensor in MiB: a Llama of 8 B
# parameters with fused projections, and large weights with their scales.
@pytest.mark.parametrize("layer, count", [((48, 32, 224, 112, 0.01), 6), ((256, 0.01, 0.01), 10)])
def test_segments_of_tensors_are_full(torch, monkeypatch, layer, count):
    monkeypatch.setattr("gpumem._tensor_stream._SMALLEST", MIB // 4)
    monkeypatch.setattr("gpumem._tensor_stream._LARGEST", 8 * MIB)
    sizes = [int(size * MIB / 64) // 4 for size in layer] * count

    def loader():
        for number, size in enumerate(sizes):
            yield str(number), tensor(torch, np.full(size, number, "int32"))

    weights = load_or_attach("m", loader, content_id="1")
    made = 4 * sum(sizes)
    assert made > 38 * MIB and weights.nbytes <= made * 1.05 + 2 * MIB
    for number, size in enumerate(sizes):
        assert values(weights[str(number)]).tolist() == [number] * size
    del weights


def test_tied_tensors_are_stored_once(torch):
    one = tensor(torch, np.arange(MIB, dtype="float32"))
    weights = load_or_attach("m", lambda: {"a": one, "b": one, "c": one.detach()}, content_id="1")
    assert weights.nbytes == 4 * MIB
    assert len({weights[name].data_ptr() for name in "abc"}) == 1
    numpys = np.arange(MIB, dtype="float32")
    weights = load_or_attach("n", lambda: {"a": numpys, "b": numpys}, content_id="1",
                             framework="numpy")
    assert weights.nbytes == 4 * MIB and np.array_equal(weights["a"], weights["b"])


def test_ranks_have_publications_of_their_own(torch):
    one, other = (load_or_attach("m", lambda: some(torch, number), content_id="one",
                                 rank=(number, 2)) for number in range(2))
    assert (one.name, other.name) == ("m.rank0-of-2", "m.rank1-of-2")
    assert one.content_id != other.content_id
    assert values(one["w"])[0, 0] == 0 and values(other["w"])[0, 0] == 1
    for wrong in ((2, 2), (-1, 2), (0, 0), 5, ("a", 1), (0.5, 1)):
        with pytest.raises(gpumem.InvalidArgumentError, match="rank"):
            load_or_attach("m", lambda: some(torch), content_id="one", rank=wrong)


def test_files(torch, tmp_path):
    del torch
    a = write_safetensors(tmp_path / "a.safetensors", {"x": np.arange(10)})
    b = write_safetensors(tmp_path / "b.safetensors", {"y": np.ones((3, 4))})
    write_safetensors(tmp_path / "c.safetensors", {"x": np.zeros(10)})  # not in the index
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": a.name, "y": b.name}}))
    of_folder = load_or_attach("m", tmp_path)
    assert of_folder.loaded and sorted(of_folder) == ["x", "y"]
    for same in (str(tmp_path), index, [a, b], (str(a), b)):
        assert not load_or_attach("m", same).loaded
    assert np.array_equal(values(of_folder["x"]), np.arange(10))
    # Equal headers, other bytes, the same time and size.
    state = b.stat()
    write_safetensors(b, {"y": np.full((3, 4), 2)})
    os.utime(b, ns=(state.st_atime_ns, state.st_mtime_ns))
    changed = load_or_attach("m", tmp_path)
    assert changed.loaded and values(changed["y"])[0, 0] == 2 and values(of_folder["y"])[0, 0] == 1
    # A given id saves reading the files.
    assert load_or_attach("given", tmp_path, content_id="rev1").content_id == b"rev1"


@pytest.mark.parametrize("index", [b"", b"{", b"[]", b'{"weight_map": []}', b'{"weight_map": {}}',
                                   b'{"weight_map": {"x": "../a.safetensors"}}',
                                   b'{"weight_map": {"x": 5}}', b'{"weight_map": {"x": ".."}}',
                                   b'{"weight_map": {"x": ["a"]}}'])
def test_bad_indexes(torch, tmp_path, index):
    del torch
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(gpumem.InvalidArgumentError, match="no index"):
        load_or_attach("m", tmp_path)


def test_no_files(torch, tmp_path):
    del torch
    for wrong in (tmp_path, tmp_path / "none.safetensors", [tmp_path / "none"]):
        with pytest.raises(gpumem.NotFoundError):
            load_or_attach("m", wrong)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone"}}')
    with pytest.raises(gpumem.NotFoundError, match="gone"):
        load_or_attach("m", tmp_path)
    for wrong in ([], 5, None, [5]):
        with pytest.raises(gpumem.InvalidArgumentError):
            load_or_attach("m", wrong)
    with pytest.raises(gpumem.InvalidArgumentError, match="unknown framework"):
        load_or_attach("m", tmp_path, framework="other")


WORKER = """
import sys
import numpy
from gpumem.serving import load_or_attach

def loader():
    print("loads", flush=True)
    if "waits" in sys.argv:
        sys.stdin.readline()
    return {"w": numpy.full(1 << 18, float(sys.argv[2]), "float32")}

weights = load_or_attach("m", loader, content_id=sys.argv[1], framework="numpy")
print(weights.loaded, weights.version, weights["w"][-1], flush=True)
sys.stdin.readline()
"""


def test_of_four_processes_one_loads(torch, daemon):
    del torch
    workers = [start(WORKER, "one", "7", runtime_dir=daemon.runtime_dir) for _ in range(4)]
    said = [finish(worker).split() for worker in workers]
    assert sorted(line[-3] for line in said) == ["False"] * 3 + ["True"]
    assert sum("loads" in line for line in said) == 1
    assert len({line[-2] for line in said}) == 1 and {line[-1] for line in said} == {"7.0"}


def test_a_loader_that_is_killed_is_followed_by_another(torch, daemon):
    del torch
    dies = start(WORKER, "one", "7", "waits", runtime_dir=daemon.runtime_dir)
    assert dies.stdout.readline() == "loads\n"
    waiting = [start(WORKER, "one", "8", runtime_dir=daemon.runtime_dir) for _ in range(3)]
    with pytest.raises(gpumem.DeadlineExceededError):
        load_or_attach("m", dict, content_id="one", framework="numpy", wait=0.01)
    dies.send_signal(signal.SIGKILL)
    dies.communicate()
    said = [finish(worker).split() for worker in waiting]
    assert sorted(line[-3] for line in said) == ["False", "False", "True"]
    assert {line[-1] for line in said} == {"8.0"}


def test_two_contents_under_one_name_are_not_mixed(torch, daemon):
    """Headers are equal, only the bytes and the ids differ."""
    del torch
    workers = [start(WORKER, f"id{number % 2}", str(number % 2), runtime_dir=daemon.runtime_dir)
               for number in range(6)]
    for number, worker in enumerate(workers):
        assert finish(worker).split()[-1] == f"{number % 2}.0"


def test_a_write_faults(torch, daemon):
    load_or_attach("m", lambda: some(torch), content_id="one")
    child = start("""
import ctypes
from gpumem.serving import load_or_attach
weights = load_or_attach("m", dict, content_id="one")
assert not weights.loaded
print("attached", flush=True)
ctypes.memset(weights["w"].data_ptr(), 0, 4)
""", runtime_dir=daemon.runtime_dir)
    out, _ = child.communicate(timeout=60)
    assert out == "attached\n" and child.returncode == -signal.SIGSEGV


def test_writable_weights(torch):
    one = load_or_attach("m", lambda: some(torch), content_id="one", writable=True)
    other = load_or_attach("m", dict, content_id="one")
    values(one["w"])[0, 0] = 99
    assert values(other["w"])[0, 0] == 99 and one.writable


def test_close(torch):
    weights = load_or_attach("m", lambda: some(torch), content_id="one")
    kept = weights["w"]
    gpumem.default_client().unpublish("m")
    with weights:
        pass
    assert weights.publication.closed and len(weights) == 0
    assert values(kept)[0, 0] == 1
    eventually(lambda: charged(gpumem.default_client()) == 2 * MIB, "it is held once")
    del kept
    eventually(lambda: charged(gpumem.default_client()) == 0, "all is given back")
