# SPDX-License-Identifier: Apache-2.0
"""gpumem._engines: a model's memory as flat tensors, and the way back."""
import gc
import json

import gpumem
import numpy as np
import pytest
from engine_fixtures import _folder, numbers  # noqa: F401
from gpumem.serving import load_or_attach
from serving_fixtures import _daemon, _torch, tensor, values  # noqa: F401


@pytest.fixture(name="engines")
def _engines(torch):
    del torch
    from gpumem import _engines as engines
    return engines


def make(torch, number=1.0):
    """A model with what quantisation schemes leave behind."""
    model = torch.nn.Module()
    model.a = torch.nn.Module()
    plain = tensor(torch, np.arange(12, dtype="float32").reshape(3, 4) + number)
    model.a.weight = torch.nn.Parameter(plain.t(), requires_grad=False)  # column-major
    model.a.weight.scheme = "fp8"
    model.b = torch.nn.Module()
    model.b.weight = model.a.weight  # tied
    model.b.part = plain[1:]  # a view of a parameter
    model.a.register_buffer("scale", tensor(torch, np.float32([2.5])))
    model.a.table = tensor(torch, np.arange(3, dtype="int64"))
    model.a.empty = torch.nn.Parameter(tensor(torch, np.zeros((0, 4), "float32")),
                                       requires_grad=False)
    return model


def blank(torch):
    """The same model as an engine makes it on the meta device: before its weights are processed."""
    with torch.device("meta"):
        model = torch.nn.Module()
        model.a, model.b = torch.nn.Module(), torch.nn.Module()
        model.a.weight = torch.nn.Parameter(torch.empty((3, 4), dtype=torch.float32),
                                            requires_grad=False)
        model.a.weight.loader = len
        model.b.weight = model.a.weight
        model.a.register_buffer("scale", torch.empty((1,), dtype=torch.float32))
        model.a.gone = torch.nn.Parameter(torch.empty((5,), dtype=torch.float32),
                                          requires_grad=False)
    return model


def packed(engines, torch, **options):
    return dict(engines.pack(make(torch), torch.device("cpu"), attributes=True, **options))


def test_a_model_comes_back(engines, torch):
    weights = load_or_attach("m", lambda: engines.pack(
        make(torch), torch.device("cpu"), attributes=True, extra={"x": 1}), content_id="1")
    other = load_or_attach("m", dict, content_id="1")
    models = [blank(torch), blank(torch)]
    for model, each in zip(models, (weights, other)):
        assert engines.bind(model, each) == {"x": 1}
        engines.finish(model)
        made = model.a.weight
        assert isinstance(made, torch.nn.Parameter) and model.b.weight is made
        assert tuple(made.shape) == (4, 3) and tuple(made.stride()) == (1, 4)
        assert numbers(made) == (np.arange(12).reshape(3, 4).T + 1).tolist()
        assert made.scheme == "fp8" and made.loader is len and not made.requires_grad
        assert model.b.part.data_ptr() == made.data_ptr() + 16
        assert numbers(model.a.table) == [0, 1, 2] and numbers(model.a.scale) == [2.5]
        assert tuple(model.a.empty.shape) == (0, 4) and model.a._parameters["gone"] is None
    # Parameters are one memory, which is read-only; an engine may write to all else.
    values(models[0].a.scale)[0] = 9
    values(models[0].a.table)[0] = 9
    assert numbers(models[1].a.scale) == [2.5] and numbers(models[1].a.table) == [0, 1, 2]
    shared = gpumem.attach("m", writable=True)["a.weight"]
    np.asarray(shared).view("float32")[0] = 77
    assert [numbers(model.a.weight)[0][0] for model in models] == [77, 77]
    del models, model, made, shared, weights, other, each


def test_attributes_only_if_asked(engines, torch):
    flat = dict(engines.pack(make(torch), torch.device("cpu"), attributes=False))
    assert "a.table" not in flat and "a.scale" in flat
    assert flat["a.weight"].numel() == 48 and "b.weight" not in flat


def test_what_cannot_be_shared(engines, torch):
    model = blank(torch)
    with pytest.raises(gpumem.UnimplementedError, match="a.weight: it is .* on "):
        engines.pack(model, torch.device("cpu"), attributes=False)
    with pytest.raises(gpumem.UnimplementedError, match="a.weight"):
        engines.pack(make(torch), torch.device("cuda"), attributes=False)


def test_buffers_that_are_not_there(engines, torch):
    model = blank(torch)
    model.a.register_buffer("more", torch.empty((2,), dtype=torch.float32,
                                                device=torch.device("meta")))
    engines.bind(model, packed(engines, torch))
    with pytest.raises(gpumem.NotFoundError, match="no buffers .'more'. of 'a'"):
        engines.finish(model)


def changed(engines, torch, **change):
    """The flat tensors, with a change in the description of a.weight."""
    flat = packed(engines, torch)
    said = json.loads(flat[engines.DESCRIPTION].numpy().tobytes())
    said["tensors"][0].update(change)
    return replaced(engines, torch, flat, said)


def replaced(engines, torch, flat, said):
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    flat[engines.DESCRIPTION] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return flat


@pytest.mark.parametrize("change", [
    {"offset": 1}, {"shape": [13]}, {"stride": [4, 4]}, {"stride": [1, -4]}, {"offset": -1},
    {"stride": [1]}, {"shape": ["a", 3]}, {"shape": [1 << 62, 1 << 62]}, {"dtype": "Tensor"},
    {"dtype": "float64", "shape": [4, 3]}, {"dtype": 5}, {"storage": "other"}, {"storage": []},
    {"kind": "attribute", "name": "a.__class__"}, {"kind": "attribute", "name": "a.b c"},
    {"same": "other"}, {"values": {"__class__": 1}}, {"values": 5}, {"values": {"data": 1}},
    {"name": 5}, {"storage": None, "shape": [1 << 62]}], ids=str)
def test_a_hostile_publisher(engines, torch, change):
    model = blank(torch)
    try:
        engines.bind(model, changed(engines, torch, **change))
    except gpumem.DataLossError as error:
        assert "not well-formed" in str(error)
    else:  # what tensors have already is left alone
        assert "values" in change and isinstance(model.a.weight, torch.nn.Parameter)
        assert tuple(model.a.weight.shape) == (4, 3)


@pytest.mark.parametrize("change", [{"name": "c.weight"}, {"name": "a.b.weight"},
                                    {"kind": "module"}], ids=str)
def test_no_place_in_the_model(engines, torch, change):
    with pytest.raises(gpumem.NotFoundError, match="no place for"):
        engines.bind(blank(torch), changed(engines, torch, **change))


@pytest.mark.parametrize("said", [b"{", b"[1]", b"5", b"\xff", b'{"format": "other"}', b"{}",
                                  b'{"format": "gpumem-engine/1", "tensors": 5, "extra": null}',
                                  b'{"format": "gpumem-engine/1"}', b"[" * 100000])
def test_no_description(engines, torch, said):
    with pytest.raises(gpumem.DataLossError):
        engines.bind(blank(torch), replaced(engines, torch, {}, said))


def test_no_publication_of_an_engine(engines, torch):
    with pytest.raises(gpumem.DataLossError, match="not of an inference engine"):
        engines.bind(blank(torch), {"a": tensor(torch, np.float32([1]))})
    gc.collect()


# ---- What makes weights equal --------------------------------------------------------------------


def test_the_files_of_a_model(engines, folder):
    (folder / "README.md").write_text("no weights")
    (folder / "part").mkdir()
    (folder / "part" / "model.py").write_text("")
    names = [path[len(str(folder)) + 1:] for path in engines.files_of(str(folder), None, None)]
    assert names == ["config.json", "model.safetensors", "part/model.py"]
    one = str(folder / "config.json")
    assert engines.files_of(one, None, None) == [one]
    (folder / "empty").mkdir()
    with pytest.raises(gpumem.NotFoundError, match="no files of a model"):
        engines.files_of(str(folder / "empty"), None, None)


def test_all_of_it_counts(engines, folder):
    paths = engines.files_of(str(folder), None, None)
    ids = [engines.content_id("vllm 1", paths, {"rank": 0}),
           engines.content_id("vllm 2", paths, {"rank": 0}),
           engines.content_id("vllm 1", paths, {"rank": 1})]
    (folder / "model.safetensors").write_bytes(b"others")
    ids.append(engines.content_id("vllm 1", paths, {"rank": 0}))
    assert ids[3] == engines.content_id("vllm 1", paths, {"rank": 0})
    (folder / "config.json").write_text("[]")
    ids.append(engines.content_id("vllm 1", paths, {"rank": 0}))
    ids.append(engines.content_id("vllm 1", paths, {"rank": 0}, "a revision"))
    assert len(set(ids)) == 6
    options = engines.Options.take({}, "vllm")
    assert options == ("vllm", float("inf"), 0, "")
    assert len({options.name_of(each) for each in ids}) == 6


def test_files_of_the_same_name(engines, folder):
    """Shards beside their index, and models in folders of a model."""
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w": "model.safetensors"}}')
    (folder / "draft").mkdir()
    for name in ("model.safetensors", "config.json"):
        (folder / "draft" / name).write_bytes((folder / name).read_bytes())
    seen = set()
    for path in (folder / "draft" / "model.safetensors", folder / "model.safetensors",
                 folder / "model.safetensors.index.json"):
        path.write_bytes(path.read_bytes() + b" ")
        seen.add(engines.content_id("vllm 1", engines.files_of(str(folder), None, None), {}))
    assert len(seen) == 3


def test_ranks_that_would_wait_for_each_other(engines):
    engines.check_format("fastsafetensors", 1)
    engines.check_format("auto", 8)
    with pytest.raises(gpumem.UnimplementedError, match="fastsafetensors"):
        engines.check_format("fastsafetensors", 2)
