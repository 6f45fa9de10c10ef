# SPDX-License-Identifier: Apache-2.0
"""gpumem.vllm, with a stand-in for vLLM. real_test.py has vLLM itself."""
import gc
import sys

import gpumem
import pytest
from conftest import run_python
from engine_fixtures import _folder, numbers, plugin_of  # noqa: F401
from gpumem import _plugins
from serving_fixtures import _daemon, _torch, values  # noqa: F401


@pytest.fixture(name="plugin")
def _plugin(torch):
    del torch
    yield plugin_of("vllm")[0]


@pytest.fixture(name="vllm")
def _vllm(plugin):
    del plugin
    engine = plugin_of("vllm")[1]
    engine.DefaultModelLoader.loads.clear()
    engine.processed.clear()
    engine.rank[:] = [0, 1]
    yield engine


def load(vllm, config, **options):
    return vllm.get_model_loader(config.load_config).load_model(
        vllm_config=config, model_config=config.model_config, **options)


def test_the_first_loads_and_the_others_attach(vllm, folder):
    configs = [vllm.configuration(str(folder), name="mine") for _ in range(2)]
    models = [load(vllm, config) for config in configs]
    assert vllm.DefaultModelLoader.loads == ["auto"]
    # Once to load, and once for each model, without its transformations.
    assert vllm.processed == [False, True, True]
    for model, config in zip(models, configs):
        assert isinstance(model, vllm.Model) and model.has_own_lm_head
        assert tuple(model.layer.weight.shape) == (2, 4)
        assert numbers(model.layer.weight) == [[10, 12, 14, 16], [11, 13, 15, 17]]
        assert tuple(model.layer.weight.stride()) == (1, 2)
        assert model.layer.weight.weight_loader is len
        assert numbers(model.layer.weight_scale) == [20] and model.layer.weight_scale.is_ready
        assert "scale_inv" not in model.layer._parameters
        assert model.consumed is None  # by loading
        assert model.tied.weight is model.head.weight
        # The load has changed nothing of the engine's configuration.
        assert not hasattr(config.model_config, "changed_by_loading")
        assert config.compilation_config.static_forward_context == {"layer": model.layer}
    assert models[0].gpumem_weights.loaded and not models[1].gpumem_weights.loaded
    info, = gpumem.default_client().publications()
    assert info.name.startswith("mine-") and info.attached_sessions == 1
    # An engine may write to its buffers.
    values(models[0].layer.cache)[0] = -1
    assert numbers(models[1].layer.cache)[0] != -1
    del models, model
    gc.collect()


@pytest.mark.parametrize("change", [
    lambda vllm, config: setattr(config.model_config, "dtype", "other"),
    lambda vllm, config: setattr(config.model_config, "width", 5),
    lambda vllm, config: setattr(config.cache_config, "cache_dtype", "fp8"),
    lambda vllm, config: setattr(config.kernel_config, "moe_backend", "other"),
    lambda vllm, config: setattr(config.load_config, "ignore_patterns", ("x",)),
    lambda vllm, config: setattr(config, "lora_config", 1),
    lambda vllm, config: config.load_config.model_loader_extra_config.update(load_format="dummy"),
    lambda vllm, config: config.load_config.model_loader_extra_config.update(threads=2),
    lambda vllm, config: vllm.rank.__setitem__(slice(None), [0, 2]),
    lambda vllm, config: vllm.rank.__setitem__(slice(None), [1, 2]),
    lambda vllm, config: setattr(vllm, "__version__", "0.1"),
], ids=range(11))
def test_other_weights_are_never_served(vllm, folder, change, monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.0")
    load(vllm, vllm.configuration(str(folder)))
    config = vllm.configuration(str(folder))
    change(vllm, config)
    assert load(vllm, config).gpumem_weights.loaded
    again = vllm.configuration(str(folder))
    change(vllm, again)
    assert not load(vllm, again).gpumem_weights.loaded


def test_other_files_and_prefixes_are_other_weights(vllm, folder):
    load(vllm, vllm.configuration(str(folder)))
    assert load(vllm, vllm.configuration(str(folder)), prefix="draft.").gpumem_weights.loaded
    (folder / "model.safetensors").write_bytes(b"others")
    assert load(vllm, vllm.configuration(str(folder))).gpumem_weights.loaded


def test_weights_that_expire(vllm, folder):
    model = load(vllm, vllm.configuration(str(folder), expire_after=600, wait=60))
    info, = gpumem.default_client().publications()
    assert info.expire_after == 600 and vllm.DefaultModelLoader.loads == ["auto"]
    del model


def test_ranks_have_their_own(vllm, folder):
    for rank in (0, 1):
        vllm.rank[:] = [rank, 2]
        model = load(vllm, vllm.configuration(str(folder)))
        assert numbers(model.layer.weight)[0][0] == 1000 * rank + 10
    assert len(gpumem.default_client().publications()) == 2
    del model


def test_the_budget_counts_what_is_published(vllm, folder):
    config = vllm.configuration(str(folder))
    loader = vllm.get_model_loader(config.load_config)
    assert loader.get_external_weight_memory(config) == 0
    model = load(vllm, vllm.configuration(str(folder)))
    assert loader.get_external_weight_memory(config) == model.gpumem_weights.nbytes > 0


def change_eplb(config):
    config.parallel_config.enable_eplb = True


def change_transfer(config):
    config.weight_transfer_config = 1


def change_offload(config):
    config.offload_config.uva.cpu_offload_gb = 1


def change_preserved(config):
    config.model_config.sleep_preserve_parameter_names = ["*"]


def change_format(config):
    config.parallel_config.world_size = 2
    config.load_config.model_loader_extra_config["load_format"] = "fastsafetensors"


@pytest.mark.parametrize("change", [change_eplb, change_transfer, change_offload, change_preserved,
                                    change_format])
def test_what_would_write_to_weights_is_refused(vllm, folder, change):
    config = vllm.configuration(str(folder))
    change(config)
    with pytest.raises(gpumem.UnimplementedError):
        load(vllm, config)
    with pytest.raises(gpumem.UnimplementedError):
        vllm.get_model_loader(config.load_config).get_external_weight_memory(config)
    assert not vllm.DefaultModelLoader.loads


def test_quantisation_that_cannot_be_shared(vllm, folder):
    config = vllm.configuration(str(folder))
    config.model_config.supported = False
    with pytest.raises(gpumem.UnimplementedError, match=r"Method \(layer\) .*--load-format auto"):
        load(vllm, config)
    assert gpumem.default_client().publications() == []


def test_packed_for_the_cpu(vllm, folder, monkeypatch):
    def empties(model, model_config, target):
        del model_config, target
        model.layer.weight = sys.modules["torch"].nn.Parameter(
            sys.modules["torch"].empty((0,), dtype=sys.modules["torch"].float32),
            requires_grad=False)

    monkeypatch.setattr(vllm, "process_weights_after_loading", empties)
    with pytest.raises(gpumem.UnimplementedError, match="packs"):
        load(vllm, vllm.configuration(str(folder)))


def test_nothing_is_loaded_in_place(vllm, folder):
    config = vllm.configuration(str(folder))
    model = load(vllm, config)
    with pytest.raises(gpumem.UnimplementedError, match="shared with other processes"):
        model.load_weights([])
    loader = vllm.get_model_loader(config.load_config)
    with pytest.raises(gpumem.UnimplementedError, match="shared with other processes"):
        loader.load_weights(model, config.model_config)
    assert not hasattr(loader, "get_all_weights")  # vLLM's reload asks for it


def test_sleep_mode_leaves_the_weights(plugin, vllm, folder):
    config = vllm.configuration(str(folder))
    config.model_config.enable_sleep_mode = True
    load(vllm, config)
    name = config.model_config.sleep_mode_backend
    module, kind = vllm.SleepModeBackendFactory._registry[name]
    backend = getattr(sys.modules[module], kind)()
    assert isinstance(backend, plugin.SleepBackend)
    backend.suspend(1)
    backend.suspend(level=2)
    assert backend.suspended == [1, 1]  # nothing of the process is discarded
    # Another backend is the user's choice.
    config = vllm.configuration(str(folder))
    config.model_config.enable_sleep_mode, config.model_config.sleep_mode_backend = True, "mine"
    load(vllm, config)
    assert config.model_config.sleep_mode_backend == "mine"


def test_a_loader_that_fails_leaves_the_claim_to_others(vllm, folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(vllm.DefaultModelLoader, "load_model", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            load(vllm, vllm.configuration(str(folder)))
    assert load(vllm, vllm.configuration(str(folder))).gpumem_weights.loaded


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_engine_that_is_too_old(name, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    done = run_python(f"""
import sys
sys.path.insert(0, sys.argv[1])
from gpumem import _plugins
_plugins.{name}()
""", str(tmp_path), runtime_dir="/nonexistent", check=False, fakes=True)
    assert done.returncode == 0 and b"it needs" in done.stderr


def test_the_entry_point_registers(plugin, vllm):
    _plugins.vllm()
    _plugins.vllm()
    assert vllm._loaders["gpumem"] is plugin.ModelLoader
