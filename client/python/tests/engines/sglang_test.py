# SPDX-License-Identifier: Apache-2.0
"""gpumem.sglang, with a stand-in for SGLang. real_test.py has SGLang itself."""
import types

import gpumem
import pytest
from engine_fixtures import _folder, numbers, plugin_of  # noqa: F401
from gpumem import _plugins
from serving_fixtures import _daemon, _torch, values  # noqa: F401

UPDATER = "model_executor.model_runner_components.weight_updater.WeightUpdater"
MANAGER = "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


@pytest.fixture(name="sglang")
def _sglang(torch):
    del torch
    engine = plugin_of("sglang")[1]
    yield engine
    engine.loads.clear()
    engine.refreshed.clear()


def loader_of(sglang, folder, extra=None, **options):
    config = sglang.ModelConfig(str(folder), **options)
    load_config = sglang.LoadConfig(
        model_loader_extra_config={"threads": 2, "gpumem": {} if extra is None else extra})
    return sglang.HookRegistry.call("model_loader.loader.get_model_loader",
                                    sglang.get_model_loader, load_config, config), config


def load(sglang, folder, extra=None, **options):
    loader, config = loader_of(sglang, folder, extra, **options)
    return loader, loader.load_model(model_config=config,
                                     device_config=types.SimpleNamespace(device="cpu"))


def test_the_first_loads_and_the_others_attach(sglang, folder):
    (first, one), (second, other) = [load(sglang, folder, {"name": "mine"}) for _ in range(2)]
    assert [each.model_loader_extra_config for each in sglang.loads] == [{"threads": 2}]
    assert one.gpumem_weights.loaded and not other.gpumem_weights.loaded
    assert first.preloaded_weights_bytes == 0
    assert second.preloaded_weights_bytes == other.gpumem_weights.nbytes > 0
    for model in (one, other):
        layer = model.layer
        assert values(layer.weight).tobytes() == bytes(range(24)) and layer.weight.format_ue8m0
        assert values(layer.absorbed).tobytes() == bytes(range(8))
        assert layer.view.data_ptr() == layer.weight.data_ptr() + 8
        assert model in sglang.refreshed
    values(one.layer.cache)[0] = values(one.layer.absorbed)[0] = 5  # the process's own
    assert values(other.layer.cache).tobytes() == bytes(range(12))
    assert values(other.layer.absorbed).tobytes() == bytes(range(8))
    info, = gpumem.default_client().publications()
    assert info.name.startswith("mine-")
    del one, other, layer, model


def test_other_servers_are_left_alone(sglang, folder):
    config = sglang.LoadConfig(model_loader_extra_config={"threads": 2})
    found = sglang.HookRegistry.call("model_loader.loader.get_model_loader",
                                     sglang.get_model_loader, config)
    assert type(found) is sglang.DefaultModelLoader
    with pytest.raises(ValueError, match="no option 'nmae'"):
        load(sglang, folder, {"nmae": "mine"})
    _plugins.sglang()


@pytest.mark.parametrize("owner, name, value", [
    ("model", "dtype", "half"), ("execution", "attention_backend", "b"),
    ("parallel", "tp_rank", 1), (None, "dtype", "half"), (None, "quantization", "fp8"),
    ("environment", "SGLANG_SWITCH", "1")])
def test_other_weights_are_never_served(sglang, folder, owner, name, value, monkeypatch):
    load(sglang, folder)
    options = {}
    if owner is None:
        options[name] = value
    elif owner == "environment":
        monkeypatch.setenv(name, value)
    elif owner == "parallel":
        monkeypatch.setattr(sglang.parallel, name, value)
    else:
        monkeypatch.setitem(getattr(sglang, owner)._fields, name, value)
    assert load(sglang, folder, **options)[1].gpumem_weights.loaded
    assert not load(sglang, folder, **options)[1].gpumem_weights.loaded


def test_what_does_not_change_weights_shares_them(sglang, folder, monkeypatch):
    load(sglang, folder)
    monkeypatch.setitem(sglang.parallel._config._fields, "nccl_port", 2000)
    monkeypatch.setenv("SGLANG_RUN_ID", "another")
    assert not load(sglang, folder)[1].gpumem_weights.loaded


@pytest.mark.parametrize("bag, name, value", [
    ("model", "weight_cache_mode", "client"), ("model", "is_startup_weight_load_overlap", True),
    ("moe", "enable_eplb", True), ("offload", "cpu_offload_gb", 1),
    ("offload", "offload_group_size", 2)])
def test_what_would_write_to_weights_is_refused(sglang, folder, bag, name, value, monkeypatch):
    owner = sglang.model if bag == "model" else getattr(sglang.execution, bag)
    monkeypatch.setitem(owner._fields, name, value)
    with pytest.raises(gpumem.UnimplementedError, match="shared with other processes"):
        load(sglang, folder)
    assert not sglang.loads


def test_models_that_derive_from_their_weights(sglang, folder, monkeypatch):
    monkeypatch.setattr(sglang.Model, "post_load_weights", len, raising=False)
    with pytest.raises(gpumem.UnimplementedError, match="post_load_weights"):
        load(sglang, folder)


def test_quantisation_that_cannot_be_shared(sglang, folder):
    with pytest.raises(RuntimeError, match="gpumem: awq is not verified"):
        load(sglang, folder, quantization="awq")


def test_nothing_is_updated_in_place(sglang, folder):
    model = load(sglang, folder)[1]
    with pytest.raises(gpumem.UnimplementedError, match="shared with other processes"):
        model.load_weights([])
    plain = sglang.Model()
    for name in ("update_weights_from_disk", "load_weights_from_distributed",
                 "update_weights_from_tensor", "update_weights_from_ipc"):
        original = getattr(sglang.WeightUpdater, name)
        call = f"{UPDATER}.{name}"
        done, why = sglang.HookRegistry.call(call, original, sglang.WeightUpdater(model), "x")
        assert not done and "shared with other processes" in why
        assert sglang.HookRegistry.call(call, original, sglang.WeightUpdater(plain), "x") == (
            True, "x")
    manager = sglang.SchedulerWeightUpdaterManager(model)
    answer = sglang.HookRegistry.call(f"{MANAGER}.begin_weight_update",
                                      sglang.SchedulerWeightUpdaterManager.begin_weight_update,
                                      manager, None)
    assert not answer.success and "shared with other processes" in answer.message


@pytest.mark.parametrize("what", ["release", "resume"])
@pytest.mark.parametrize("asked, done", [
    (None, ["kv_cache", "cuda_graph"]), ([], ["kv_cache", "cuda_graph"]),
    (["weights", "kv_cache"], ["kv_cache"]), (["weights"], None)])
def test_the_weights_stay_when_memory_is_released(sglang, folder, what, asked, done):
    name = f"{what}_memory_occupation"
    original = getattr(sglang.SchedulerWeightUpdaterManager, name)
    calls = []
    for model in (load(sglang, folder)[1], sglang.Model()):
        manager = sglang.SchedulerWeightUpdaterManager(model)
        request = types.SimpleNamespace(tags=asked)
        assert sglang.HookRegistry.call(f"{MANAGER}.{name}", original, manager, request).success
        calls.append(manager.calls)
    assert calls == [[] if done is None else [(what, done)], [(what, asked)]]
