# SPDX-License-Identifier: Apache-2.0
"""The files that a caller means."""
from __future__ import annotations

import json
import os
from typing import Any, Iterable, List, Union

from ..errors import InvalidArgumentError, NotFoundError, PermissionDeniedError

PathLike = Union[str, "os.PathLike[str]"]

_INDEX = ".safetensors.index.json"
_LARGEST_INDEX = 64 << 20  # bytes


def files_of(paths: Union[PathLike, Iterable[PathLike]]) -> List[str]:
    """Returns the files that a path, or several, name: of a folder or of an index, the shards.

    Raises NotFoundError, PermissionDeniedError; InvalidArgumentError: no paths, a bad index, or two
    files of one name.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    found: List[str] = []
    try:
        for path in paths:
            found += _expanded(os.fspath(path))
    except TypeError as error:
        raise InvalidArgumentError(f"neither a path, nor paths, nor a function: {error}") from error
    except FileNotFoundError as error:
        raise NotFoundError(f"{error.filename}: no such file") from error
    except PermissionError as error:
        raise PermissionDeniedError(f"{error.filename}: cannot be read") from error
    if not found:
        raise InvalidArgumentError("there are no files to load")
    names = [os.path.basename(path) for path in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"two files have the name {name}")
    return found


def _expanded(path: str) -> List[str]:
    if os.path.isdir(path):
        inside = sorted(os.listdir(path))
        indexes = [name for name in inside if name.endswith(_INDEX)]
        if len(indexes) == 1:
            return _shards(os.path.join(path, indexes[0]))
        if indexes:
            raise InvalidArgumentError(f"{path} has {len(indexes)} indexes: name one of them")
        found = [os.path.join(path, name) for name in inside if name.endswith(".safetensors")]
        if not found:
            raise NotFoundError(f"{path} has no *.safetensors: name the files to load")
        return found
    if path.endswith(_INDEX):
        return _shards(path)
    os.stat(path)
    return [path]


def _shards(index: str) -> List[str]:
    """Returns the files that an index of safetensors names."""
    with open(index, "rb") as file:
        said = file.read(_LARGEST_INDEX + 1)
    try:
        if len(said) > _LARGEST_INDEX:
            raise ValueError("it is too long")
        names: Any = sorted(set(json.loads(said)["weight_map"].values()))
        if not names or any(not isinstance(name, str) or os.path.basename(name) != name or
                            name in ("", ".", "..") for name in names):
            raise ValueError("it names no files of its folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgumentError(f"{index} is no index of safetensors: {error!r:.200}") from error
    found = [os.path.join(os.path.dirname(index), name) for name in names]
    for path in found:
        os.stat(path)
    return found
