# SPDX-License-Identifier: Apache-2.0
"""gpumem.serving.Weights: modules on mapped tensors, parts of tensors, and new versions."""
import gc
import threading

import gpumem
import gpumem.serving
import numpy as np
import pytest
from conftest import MIB, charged, eventually
from gpumem.serving import load_or_attach, push
from gpumem.serving.slices import part_of
from fixtures import (_daemon, _torch, finish, start, tensor,  # noqa: F401
                              values)


def make(torch, seed=0, **options):
    """Returns a module with tied weights, a buffer, and a buffer outside its state dict."""
    module = torch.nn.Module()
    module.body = torch.nn.Linear(4, 8, **options)
    module.head = torch.nn.Linear(4, 8, **options)
    module.head.weight = module.body.weight
    module.register_buffer("scale", tensor(torch, np.float32([2.5])))
    module.register_buffer("table", tensor(torch, np.float32([seed])), persistent=False)
    return module


def state(torch, seed):
    shapes = {"body.weight": (8, 4), "body.bias": (8,), "head.bias": (8,), "scale": (1,)}
    return {name: tensor(torch, np.full(shape, seed, "float32")) for name, shape in shapes.items()}


def test_a_module_uses_the_mapped_tensors(torch):
    weights = load_or_attach("m", lambda: state(torch, 3), content_id="3")
    module = make(torch, seed=7)
    assert weights.bind(module) is module
    assert module.body.weight.data_ptr() == weights["body.weight"].data_ptr()
    assert module.head.weight is module.body.weight
    assert isinstance(module.head.weight, torch.nn.Parameter)
    assert not module.head.weight.requires_grad
    assert module.scale.data_ptr() == weights["scale"].data_ptr()
    assert values(module.table)[0] == 7  # the module's own
    assert (values(module.head.bias) == 3).all()


def test_a_module_that_does_not_fit_stays_as_it_was(torch):
    weights = load_or_attach("m", lambda: state(torch, 3), content_id="3")
    for name in weights:
        less = {key: each for key, each in state(torch, 3).items() if key != name}
        module = make(torch)
        before = module.body.weight, module.body.bias, module.scale
        with pytest.raises(gpumem.NotFoundError, match="[12] tensors are only in the module"):
            load_or_attach("less", lambda: less, content_id=name).bind(module)
        assert all(one is other for one, other in
                   zip(before, (module.body.weight, module.body.bias, module.scale)))
    module = make(torch, bias=False)
    before = module.body.weight
    with pytest.raises(gpumem.NotFoundError, match="2 only in the publication"):
        weights.bind(module)
    assert module.body.weight is before
    weights.bind(module, strict=False)
    assert module.body.weight is not before
    wrong = make(torch)
    wrong.scale = tensor(torch, np.float32([1, 2]))
    wrong.register_buffer("scale", wrong.scale)
    before = wrong.body.weight
    with pytest.raises(gpumem.InvalidArgumentError, match="scale is float32"):
        weights.bind(wrong)
    wrong.register_buffer("scale", tensor(torch, np.float64([1])))
    with pytest.raises(gpumem.InvalidArgumentError, match="in the module"):
        weights.bind(wrong, strict=False)
    assert wrong.body.weight is before


def test_tied_parameters_that_differ_are_refused(torch):
    def both(seed):
        return {**state(torch, 3), "head.weight": tensor(torch, np.full((8, 4), seed, "float32"))}

    module = make(torch)
    load_or_attach("m", lambda: both(3), content_id="equal").bind(module)
    assert module.head.weight is module.body.weight
    with pytest.raises(gpumem.InvalidArgumentError, match="are one parameter in the module"):
        load_or_attach("m", lambda: both(4), content_id="different").bind(module)


def test_a_module_without_memory(torch):
    if not hasattr(torch, "device") or not hasattr(torch.device, "__enter__"):
        pytest.skip("needs PyTorch")
    weights = load_or_attach("m", lambda: state(torch, 3), content_id="3")
    with torch.device("meta"):
        module = make(torch)
    weights.bind(module)
    assert not module.head.weight.is_meta and (module.head.weight == 3).all()
    module.register_buffer("table", torch.ones(1, device="meta"), persistent=False)
    with pytest.raises(gpumem.InvalidArgumentError, match="table is not in the state dict"):
        weights.bind(module)
    other = load_or_attach("n", lambda: make(torch), content_id="module")
    assert "table" in other and other["head.weight"].data_ptr() == other["body.weight"].data_ptr()


def test_writable_parameters_learn(torch):
    weights = load_or_attach("m", lambda: state(torch, 3), content_id="3", writable=True)
    module = weights.bind(make(torch))
    assert module.body.weight.requires_grad


def test_only_pytorch_has_modules(torch):
    weights = load_or_attach("m", lambda: {"a": np.arange(3)}, content_id="3", framework="gpumem")
    assert weights["a"].shape == (3,)
    with pytest.raises(gpumem.UnimplementedError):
        weights.bind(make(torch))


# ---- Parts


@pytest.mark.parametrize("framework", ["torch", "numpy", "gpumem"])
def test_parts_are_views(torch, framework):
    del torch
    array = np.arange(24, dtype="float32").reshape(4, 6)
    weights = load_or_attach("m", lambda: iter([("q.weight", array), ("o.weight", array),
                                                ("norm", array), ("kept.weight", array)]),
                             content_id="1", framework="numpy")
    weights = load_or_attach("m", dict, content_id="1", framework=framework)
    plan = {"kept.*": None, "q.*": 0, "*.weight": -1}
    for rank in range(2):
        parts = weights.slice((rank, 2), plan)
        seen = {name: np.asarray(part) if framework == "gpumem" else part if framework == "numpy"
                else values(part) for name, part in parts.items()}
        assert np.array_equal(seen["q.weight"], array[2 * rank:2 * rank + 2])
        assert np.array_equal(seen["o.weight"], array[:, 3 * rank:3 * rank + 3])
        assert np.array_equal(seen["norm"], array) and np.array_equal(seen["kept.weight"], array)
        assert seen["q.weight"].flags.c_contiguous and not seen["o.weight"].flags.c_contiguous
    for wrong, match in (({"q.*": 2}, "without a dimension 2"), ({"q.*": -3}, "dimension -3")):
        with pytest.raises(gpumem.InvalidArgumentError, match=match):
            weights.slice((0, 2), wrong)
    with pytest.raises(gpumem.InvalidArgumentError, match="no multiple of 5"):
        weights.slice((0, 5), plan)
    with pytest.raises(gpumem.InvalidArgumentError, match="no rank 2 of 2"):
        weights.slice((2, 2), plan)


def test_a_part_of_an_array():
    array = gpumem.asarray(np.arange(24, dtype="int32").reshape(2, 3, 4))
    part = array.narrow(1, 1, 2)
    assert np.array_equal(np.asarray(part), np.asarray(array)[:, 1:3])
    assert array.narrow(2, 4, 0).size == 0
    for wrong in ((3, 0, 1), (-1, 0, 1), (0, 1, 2), (0, -1, 1), (1, 0, -1)):
        with pytest.raises(gpumem.OutOfRangeError):
            array.narrow(*wrong)
    assert part_of("x", (8,), (1, 4), {}) is None
    assert part_of("x", (8, 4), (1, 4), {"x": 0}) == (0, 2, 2)


def test_a_rank_binds_its_part(torch):
    module = torch.nn.Linear(4, 8)
    weights = load_or_attach("m", lambda: module, content_id="1")
    half = torch.nn.Linear(4, 4)
    weights.bind(half, rank=(1, 2), plan={"*": 0})
    assert np.array_equal(values(half.weight), values(module.weight)[4:])
    push("m", {"weight": tensor(torch, np.full((8, 4), 5, "float32")),
               "bias": tensor(torch, np.arange(8, dtype="float32"))})
    assert weights.update()
    assert (values(half.weight) == 5).all() and values(half.bias).tolist() == [4, 5, 6, 7]


# ---- Versions


def test_a_worker_follows_the_versions(torch):
    weights = load_or_attach("m", lambda: state(torch, 1), content_id="1")
    module = weights.bind(make(torch, seed=7))
    parameter, first = module.body.weight, weights.version
    assert weights.newer() is None and not weights.update()
    kept = weights["scale"]
    version = push("m", state(torch, 2), content_id="2")
    assert weights.newer() == version == first + 1
    assert values(module.body.weight)[0, 0] == 1  # until it asks
    assert weights.update() and not weights.update()
    assert weights.version == version and weights.content_id == b"2" and not weights.loaded
    assert module.body.weight is parameter and values(parameter)[0, 0] == 2
    assert module.head.weight is parameter and values(module.scale)[0] == 2
    assert values(module.table)[0] == 7 and values(weights["scale"])[0] == 2
    # The last that has something of the first version keeps it.
    assert values(kept)[0] == 1
    client = gpumem.default_client()
    eventually(lambda: charged(client) == 4 * MIB, "both versions are held")
    del kept
    eventually(lambda: charged(client) == 2 * MIB, "the first is given back")


def test_a_version_that_does_not_fit_changes_nothing(torch):
    weights = load_or_attach("m", lambda: state(torch, 1), content_id="1")
    module, other = weights.bind(make(torch)), weights.bind(make(torch))
    version = weights.version
    bad = state(torch, 2)
    bad["scale"] = tensor(torch, np.float32([1, 2]))
    push("m", bad)
    with pytest.raises(gpumem.InvalidArgumentError, match="scale"):
        weights.update()
    push("m", {"body.weight": bad["body.weight"], "scale": state(torch, 3)["scale"]})
    with pytest.raises(gpumem.NotFoundError, match="no tensor"):
        weights.update()
    assert weights.version == version
    assert values(module.body.weight)[0, 0] == values(other.body.weight)[0, 0] == 1
    push("m", state(torch, 4))
    del other
    gc.collect()
    assert weights.update() and values(module.body.weight)[0, 0] == 4


def test_waiting_for_a_version(torch):
    weights = load_or_attach("m", lambda: state(torch, 1), content_id="1")
    pusher = threading.Timer(0.05, push, ("m", state(torch, 2)))
    pusher.start()
    assert weights.update(wait=30) and values(weights["scale"])[0] == 2
    pusher.join()


READER = """
import sys
import torch
import numpy
from gpumem.serving import load_or_attach

def values(one):
    return one.array if hasattr(one, "array") else one.detach().numpy()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        make = getattr(torch, "from_numpy", None) or torch.Tensor
        for name in "abc":
            setattr(self, name, torch.nn.Parameter(make(numpy.zeros(1 << 16, "float32"))))

weights = load_or_attach("m", dict, content_id="1")
model = weights.bind(Model())
print("serves", weights.version, flush=True)
seen = []
while not seen or seen[-1] < 20:
    weights.update(wait=0 if seen else 0.001)
    read = {value for name in "abc" for value in numpy.unique(values(getattr(model, name))).tolist()}
    assert len(read) == 1, read  # one version, whole
    if not seen or seen[-1] != min(read):
        seen.append(min(read))
assert seen == sorted(seen)
print("saw", len(seen), flush=True)
"""


def test_each_read_sees_one_version_whole(torch, daemon):
    def version(number):
        return {name: tensor(torch, np.full(1 << 16, number, "float32")) for name in "abc"}

    load_or_attach("m", lambda: version(1), content_id="1").close()
    readers = [start(READER, runtime_dir=daemon.runtime_dir) for _ in range(2)]
    for reader in readers:
        assert reader.stdout.readline().startswith("serves")
    for number in range(2, 21):
        push("m", version(number))
    assert all(finish(reader).startswith("saw") for reader in readers)
    eventually(lambda: charged(gpumem.default_client()) == 2 * MIB, "the old versions have ended")
