# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins of inference engines share: a loaded model's memory as flat tensors of bytes
with a description, and the way back into a model that has no memory.

A flat tensor is one storage of PyTorch. So strides, views and tied weights come back as they were,
whatever a quantisation scheme made of them. Storages with a parameter are mapped read-only and
shared; the others (buffers, scales, caches of positions) are copied for each process, since engines
write to some of them.
"""
from __future__ import annotations

import gc
import hashlib
import json
import math
import os
from typing import (Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set,
                    Tuple)

import torch  # type: ignore[import]

import gpumem

from . import _cuda, files
from .errors import DataLossError, NotFoundError, UnimplementedError
from .serving import Weights, load_or_attach

DESCRIPTION = "gpumem.description"  # the name of the flat tensor that holds the JSON
_FORMAT = "gpumem-engine/1"
_KINDS = ("parameter", "buffer", "attribute")
_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json", ".py")
_CHUNK = 1 << 30  # bytes that are freed on a GPU at a time
# Formats whose ranks read files together. If two engines start at once, one rank of each may wait
# for the other engine, and all ranks for these.
_COLLECTIVE = ("fastsafetensors", "instanttensor")


# ---- What makes weights equal --------------------------------------------------------------------


def files_of(model: str, revision: Optional[str], folder: Optional[str]) -> List[str]:
    """Returns the files of a model that decide its weights. model: a file, a folder, or a name in
    the hub's local cache (`folder`, None: the default one)."""
    if os.path.isfile(model):
        return [model]
    if not os.path.isdir(model):
        from huggingface_hub import snapshot_download  # type: ignore[import]
        model = snapshot_download(model, revision=revision, cache_dir=folder,
                                  local_files_only=True)
    found = [os.path.join(path, name) for path, _, names in os.walk(model) for name in names
             if name.endswith(_FILES)]
    if not found:
        raise NotFoundError(f"the folder {model} has no files of a model")
    return sorted(found)


def gpu_of(target: Any) -> Tuple[Optional[str], Dict[str, Any]]:
    """Returns the daemon's name of a torch.device, None for the CPU, and the facts about it that
    decide the layout of weights."""
    if target.type != "cuda":
        return None, {"device": target.type}
    index = torch.cuda.current_device() if target.index is None else target.index
    uuid = _cuda.uuid_of(index)
    return uuid, {"device": uuid, "capability": torch.cuda.get_device_capability(index),
                  "cuda": torch.version.cuda}


def _hashes(paths: List[str]) -> Dict[str, str]:
    """Returns the hashes of files, the larger ones of a folder together: several threads read them,
    and an unchanged file is not read again."""
    made: Dict[str, str] = {}
    folders: Dict[str, List[str]] = {}
    top = os.path.commonpath([os.path.dirname(path) for path in paths])
    for path in paths:
        if path.endswith((".json", ".py")):
            with open(path, "rb") as file:
                made[os.path.relpath(path, top)] = hashlib.sha256(file.read()).hexdigest()
        else:
            folders.setdefault(os.path.relpath(os.path.dirname(path), top), []).append(path)
    for folder, inside in folders.items():
        made[f"{folder}/"] = files.content_id(inside, format="bytes").hex()
    return made


def content_id(engine: str, paths: List[str], facts: Mapping[str, Any], given: str = "") -> str:
    """Returns the hash of all that decides the bytes of the weights: the files, the versions of the
    engine and of PyTorch, and `facts`, which JSON can express. given: a name of the files' content,
    in place of their hashes."""
    text = json.dumps({"engine": engine, "torch": str(torch.__version__), **facts,
                       "files": given or _hashes(paths)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- Publications --------------------------------------------------------------------------------


class Options(NamedTuple):
    """What a user says about publications."""

    name: str  # the prefix
    wait: float  # seconds to wait for another process that loads
    expire_after: float  # seconds without a process that uses the weights; 0: they stay
    content_id: str  # of the files; "": their hashes

    @classmethod
    def take(cls, extra: Dict[str, Any], name: str) -> "Options":
        """Takes the options out of a dict. name: the default one."""
        return cls(str(extra.pop("name", name)), float(extra.pop("wait", math.inf)),
                   float(extra.pop("expire_after", 0)), str(extra.pop("content_id", "")))

    def name_of(self, content: str) -> str:
        """Returns the name of a publication. Weights that differ never meet under one name."""
        return f"{self.name}-{content[:24]}"

    def weights(self, content: str, target: Any, load: Callable[[], Any], log: Any) -> Weights:
        """Returns the weights: attaches to them, or has `load` load them."""
        name = self.name_of(content)
        made = load_or_attach(name, load, device=gpu_of(target)[0], content_id=content,
                              wait=self.wait, expire_after=self.expire_after)
        what = "loaded and published" if made.loaded else "attached to"
        log.info("gpumem: %s %.2f GiB of weights (%s)", what, made.nbytes / 2**30, name)
        return made


def resident(name: str) -> int:
    """Returns the bytes of that publication that are on its device now; 0 if there is none."""
    client = gpumem.default_client()
    return sum(info.nbytes - info.suspended_nbytes for info in client.publications(client.tenant)
               if info.name == name)


def check_format(load_format: str, ranks: int) -> None:
    """Raises UnimplementedError if ranks would wait for each other and for another engine."""
    if ranks > 1 and load_format in _COLLECTIVE:
        raise UnimplementedError(f"gpumem cannot load the format {load_format} on several ranks: "
                                 "they read the files together")


# ---- A model as flat tensors ---------------------------------------------------------------------


def _tensors_of(model: Any, attributes: bool) -> Iterator[Tuple[str, str, Any]]:
    for path, module in model.named_modules():
        start = f"{path}." if path else ""
        tables = [("parameter", module._parameters), ("buffer", module._buffers)]
        if attributes:
            tables.append(("attribute", {name: value for name, value in vars(module).items()
                                         if isinstance(value, torch.Tensor)}))
        for kind, table in tables:
            for leaf, tensor in table.items():
                if tensor is not None:
                    yield start + leaf, kind, tensor


def _flat(storage: Any, device: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def pack(model: Any, target: Any, *, attributes: bool, extra: Any = None
         ) -> Iterator[Tuple[str, Any]]:
    """Returns a model's memory, one after another: a flat tensor for each storage, with the name of
    its first tensor, and the description. These are its parameters and buffers, with `attributes`
    also tensors that modules have as plain attributes. `extra` is any JSON value.

    On a GPU the memory of each parameter is freed when the next flat tensor is asked for, so that
    the GPU need not hold all twice: the model is of no use then. Raises UnimplementedError if a
    tensor cannot be shared: it is on another device, or no plain memory.
    """
    flat: Dict[str, Any] = {}
    rows: List[Dict[str, Any]] = []
    seen: Dict[int, str] = {}
    storages: Dict[Tuple[Any, int], str] = {}
    weights = set()
    for name, kind, tensor in _tensors_of(model, attributes):
        row: Dict[str, Any] = {"name": name, "kind": kind}
        rows.append(row)
        if id(tensor) in seen:  # tied
            row["same"] = seen[id(tensor)]
            continue
        seen[id(tensor)] = name
        elsewhere = tensor.device.type != target.type
        if tensor.layout != torch.strided or hasattr(tensor, "__tensor_flatten__") or (
                elsewhere and (kind == "parameter" or tensor.device.type != "cpu")):
            raise UnimplementedError(
                f"gpumem cannot share {name}: it is {tensor.layout} on {tensor.device}, a "
                f"{type(tensor).__name__}")
        storage, key = tensor.untyped_storage(), None
        if tensor.numel() > 0:
            key = storages.setdefault((tensor.device, storage.data_ptr()), name)
            if key == name:
                flat[key] = _flat(storage, tensor.device)
            if kind == "parameter":
                weights.add(key)
        row.update(storage=key, dtype=str(tensor.dtype).split(".", maxsplit=1)[-1],
                   shape=list(tensor.shape), stride=list(tensor.stride()),
                   offset=tensor.storage_offset() if key else 0, cpu=elsewhere,
                   values={word: value for word, value in vars(tensor).items()
                           if isinstance(value, (bool, int, float, str))})
    text = json.dumps({"format": _FORMAT, "tensors": rows, "extra": extra}).encode()
    flat[DESCRIPTION] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return _stream(flat, weights)


def _stream(flat: Dict[str, Any], weights: Set[str]) -> Iterator[Tuple[str, Any]]:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    freed = 0
    for name in list(flat):
        tensor = flat.pop(name)
        yield name, tensor
        if tensor.device.type == "cuda" and name in weights:
            freed += tensor.numel()
            tensor.untyped_storage().resize_(0)
            if freed >= _CHUNK:
                torch.cuda.empty_cache()
                freed = 0


# ---- The way back --------------------------------------------------------------------------------


def _read(weights: Mapping[str, Any]) -> Dict[str, Any]:
    if DESCRIPTION not in weights:
        raise DataLossError("the publication is not of an inference engine's weights")
    said: Dict[str, Any] = json.loads(weights[DESCRIPTION].cpu().numpy().tobytes())
    if said["format"] != _FORMAT:
        raise DataLossError(f"the publication has the format {said['format']!r:.60}, not {_FORMAT}")
    return said


def _view(row: Mapping[str, Any], flat: Any, device: Any) -> Any:
    """Returns a tensor of a description's row in its storage. A publisher is untrusted: no tensor
    may reach beyond its storage."""
    dtype = getattr(torch, row["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{row['dtype']!r:.60} is no dtype")
    size = torch.empty(0, dtype=dtype).element_size()
    shape, stride, offset = tuple(row["shape"]), tuple(row["stride"]), row["offset"]
    if flat is None and 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device)
    elements = flat.numel() // size
    numbers = (*shape, *stride, offset)
    if len(shape) != len(stride) or not all(isinstance(n, int) and n >= 0 for n in numbers) or (
            offset + sum((n - 1) * step for n, step in zip(shape, stride)) >= elements):
        raise ValueError("a tensor exceeds its storage")
    return torch.as_strided(flat[:elements * size].view(dtype), shape, stride, offset)


def _parameter(old: Any, tensor: Any) -> Any:
    """Returns a parameter of that memory, of the class and with the attributes of the old one:
    engines keep their loaders there."""
    kind = type(old) if isinstance(old, torch.nn.Parameter) else torch.nn.Parameter
    made = torch.Tensor._make_subclass(kind, tensor, False)
    if old is not None:
        made.__dict__.update({**vars(old), **vars(made)})
    return made


def _put(module: Any, kind: str, leaf: str, tensor: Any) -> None:
    for table in (module._parameters, module._buffers, vars(module)):
        table.pop(leaf, None)
    if kind == "attribute":
        if not leaf.isidentifier() or leaf.startswith("__"):
            raise ValueError(f"{leaf!r:.60} is no attribute")
        setattr(module, leaf, tensor)
    else:
        (module._parameters if kind == "parameter" else module._buffers)[leaf] = tensor


def bind(model: Any, weights: Mapping[str, Any]) -> Any:
    """Puts published tensors into a model on the meta device, and returns the publisher's `extra`.

    Raises NotFoundError if the model has no such module; DataLossError if the publication is not
    well-formed. The model is of no use then.
    """
    try:
        said = _read(weights)
        rows = said["tensors"]
        shared = {row.get("storage") for row in rows if row["kind"] == "parameter"}
        private: Dict[str, Any] = {}
        made: Dict[str, Any] = {}
        modules = dict(model.named_modules())
        for row in rows:
            path, _, leaf = row["name"].rpartition(".")
            if path not in modules or row["kind"] not in _KINDS:
                raise NotFoundError(f"this model has no place for {row['name']!r:.200}")
            if "same" in row:
                tensor = made[row["same"]]
            else:
                key = row["storage"]
                if key is not None and key not in shared and key not in private:
                    private[key] = weights[key].clone()
                tensor = _view(row, None if key is None else private.get(key, weights[key]),
                               weights[DESCRIPTION].device)
                if row["cpu"]:
                    tensor = tensor.cpu()
                if row["kind"] == "parameter":
                    tensor = _parameter(modules[path]._parameters.get(leaf), tensor)
                for word, value in row["values"].items():
                    if not hasattr(type(tensor), word):
                        setattr(tensor, word, value)
                made[row["name"]] = tensor
            _put(modules[path], row["kind"], leaf, tensor)
        return said["extra"]
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, RecursionError) as error:
        if isinstance(error, gpumem.Error):
            raise
        raise DataLossError(f"the publication of an engine's weights is not well-formed: "
                            f"{error!r:.300}") from error


def finish(model: Any) -> None:
    """Removes the parameters that loading has consumed in the publisher, and so are on the meta
    device still. Raises NotFoundError if buffers are."""
    for path, module in model.named_modules():
        for leaf, tensor in module._parameters.items():
            if tensor is not None and tensor.device.type == "meta":
                module._parameters[leaf] = None
        missing = [leaf for leaf, tensor in module._buffers.items()
                   if tensor is not None and tensor.device.type == "meta"]
        if missing:
            raise NotFoundError(f"the publication has no buffers {missing[:3]} of {path!r}")


def refusing(what: str, why: str) -> Callable[..., Any]:
    """Returns a function that raises UnimplementedError, in place of one that writes to weights."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnimplementedError(f"{what}: {why}")

    return refuse
