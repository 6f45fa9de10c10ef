# SPDX-License-Identifier: Apache-2.0
"""PyTorch's checkpoints. They are pickles; only torch.load(weights_only=True) reads them here."""
from __future__ import annotations

import pickle
import zipfile
from typing import Any, Dict, Mapping, Sequence

from ..errors import InvalidArgumentError
from .contents import is_array_name


def load(paths: Sequence[str]) -> Dict[str, Any]:
    """Returns the tensors of checkpoints by name, mapped from their files. A checkpoint is a state
    dict, and of the format that torch.save() has written since version 1.6.

    Raises InvalidArgumentError: anything else, also more than tensors; ImportError: no PyTorch.
    """
    import torch  # type: ignore[import]  # pylint: disable=import-outside-toplevel
    found: Dict[str, Any] = {}
    for path in paths:
        if not zipfile.is_zipfile(path):
            raise InvalidArgumentError(
                f"{path} is no checkpoint of PyTorch 1.6 or later: load it with a function, or pass "
                "format=\"bytes\" to publish the file as it is")
        try:
            said = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, EOFError, KeyError,
                AttributeError, IndexError, zipfile.BadZipFile) as error:
            raise InvalidArgumentError(
                f"PyTorch does not load {path} with weights_only=True: {error!s:.300}") from error
        if not isinstance(said, Mapping):
            raise InvalidArgumentError(f"{path} has {type(said).__name__}, and no state dict")
        for name, tensor in said.items():
            if not isinstance(name, str) or not is_array_name(name):
                raise InvalidArgumentError(f"{path}: a tensor cannot have the name {name!r:.80}")
            if (not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided
                    or tensor.is_quantized):
                raise InvalidArgumentError(
                    f"{path}: {name} is {type(tensor).__name__}, and no dense tensor: pass a "
                    "function that returns the tensors of the checkpoint")
            if name in found:
                raise InvalidArgumentError(f"{path}: an earlier file has the tensor {name}, too")
            found[name] = tensor.detach()
    if not found:
        raise InvalidArgumentError("the checkpoint has no tensors")
    return found
