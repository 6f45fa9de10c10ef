# SPDX-License-Identifier: Apache-2.0
"""Publications of files: a model goes from its files into memory once, by several threads.

    client.publish_files("llama", ["model.safetensors.index.json"])
    w = gpumem.attach("llama")["model.embed_tokens.weight"]  # in every process

The tensors of safetensors files become arrays by name, and the metadata of the files is that of the
publication. An index ("*.safetensors.index.json") stands for the files that it names. Any other
file becomes one array of bytes.
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterable, List, Optional, Union

from . import _gpumem
from ._units import DeviceLike, to_device, to_kind, to_ms, to_scope
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .client import Client

PathLike = Union[str, "os.PathLike[str]"]
Progress = Callable[[int, int], object]

_FORMATS = {"auto": 0, "bytes": 1, "safetensors": 2}


@dataclass(frozen=True)
class PublishedFiles:
    """What publish_files() published."""

    version: int
    files: int
    arrays: int
    nbytes: int


def to_paths(paths: Union[PathLike, Iterable[PathLike]]) -> List[str]:
    """Returns one path or several as a list."""
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]


def _to_format(name: str) -> int:
    if name not in _FORMATS:
        raise InvalidArgumentError(f"unknown format {name!r}: use one of {', '.join(_FORMATS)}")
    return _FORMATS[name]


def content_id(paths: Union[PathLike, Iterable[PathLike]], *, format: str = "auto") -> bytes:
    """Returns the content id of files: 32 bytes, equal only for files of equal names (without
    folders) and bytes, by SHA-256.

    Several threads read the files. The hash of each is cached in ~/.cache/gpumem by device, inode,
    size, mtime and ctime, so that files which have not changed are not read again.

    Raises NotFoundError, PermissionDeniedError, InvalidArgumentError, DataLossError, and
    AbortedError if a file changes meanwhile.
    """
    return _gpumem.content_id(to_paths(paths), _to_format(format))


def publish_files(client: "Client", name: str, paths: Union[PathLike, Iterable[PathLike]], *,
                  format: str, checksums: bool, kind: Optional[str], device: DeviceLike,
                  access: str, ephemeral: bool, expire_after: float, progress: Optional[Progress],
                  timeout: Optional[float]) -> PublishedFiles:
    """See Client.publish_files()."""
    return PublishedFiles(*_gpumem.publish_files(
        client.handle, name, to_paths(paths), _to_format(format), to_kind(kind), to_device(device),
        not checksums, to_scope(access), ephemeral, to_ms(expire_after), progress, to_ms(timeout)))
