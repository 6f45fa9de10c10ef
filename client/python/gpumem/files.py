# SPDX-License-Identifier: Apache-2.0
"""Publications of files: a model goes from its files into memory once, by several threads.

    client.publish_files("llama", ["model.safetensors.index.json"])
    w = gpumem.attach("llama")["model.embed_tokens.weight"]  # in every process

The tensors of safetensors files become arrays by name, and the metadata of the files is that of the
publication. An index ("*.safetensors.index.json") stands for the files that it names, and a folder
for its safetensors. So do the arrays of NumPy's files (.npy, .npz), of GGUF files and of PyTorch's
checkpoints (.pt, .pth, .bin). Any other file becomes one array of bytes.
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

from . import _gpumem
from ._formats.contents import Contents, FileArray
from ._formats.gguf import parse_gguf
from ._formats.npy import parse_npy, parse_npz
from ._formats.paths import PathLike, files_of
from ._formats.transfer import copy_to_memory
from ._units import DeviceLike, to_device, to_kind, to_ms, to_scope
from .errors import AbortedError, InvalidArgumentError

if TYPE_CHECKING:
    from .client import Client

__all__ = ["PathLike", "Progress", "PublishedFiles", "content_id", "publish_files"]

Progress = Callable[[int, int], object]

_FORMATS = {"auto": 0, "bytes": 1, "safetensors": 2}  # that the library loads
# That this package loads.
_PARSERS: Dict[str, Callable[[str], Contents]] = {"npy": parse_npy, "npz": parse_npz,
                                                  "gguf": parse_gguf}
_EXTENSIONS = {".npy": "npy", ".npz": "npz", ".gguf": "gguf", ".pt": "torch", ".pth": "torch",
               ".bin": "torch"}


@dataclass(frozen=True)
class PublishedFiles:
    """What publish_files() published."""

    version: int
    files: int
    arrays: int
    nbytes: int


def _check_format(name: str) -> None:
    known = [*_FORMATS, *_PARSERS, "torch"]
    if name not in known:
        raise InvalidArgumentError(f"unknown format {name!r}: use one of {', '.join(known)}")


def content_id(paths: Union[PathLike, Iterable[PathLike]], *,
               format: str = "auto") -> bytes:  # pylint: disable=redefined-builtin
    """Returns the content id of files: 32 bytes, equal only for files of equal names (without
    folders) and bytes, by SHA-256. A folder and an index stand for their files.

    Several threads read the files. The hash of each is cached in ~/.cache/gpumem by device, inode,
    size, mtime and ctime, so that files which have not changed are not read again.

    Raises NotFoundError, PermissionDeniedError, InvalidArgumentError, DataLossError, and
    AbortedError if a file changes meanwhile.
    """
    _check_format(format)
    return _gpumem.content_id(files_of(paths), _FORMATS.get(format, _FORMATS["bytes"]))


def _format_of(files: List[str], name: str) -> str:
    """Returns the format of files; `name`: as the caller said."""
    if name != "auto":
        return name
    found = {_EXTENSIONS.get(os.path.splitext(path)[1].lower(), "auto") for path in files}
    if len(found) > 1:
        raise InvalidArgumentError("the files are of several formats: publish them under several "
                                   "names, or pass format=\"bytes\"")
    return found.pop()


def publish_files(client: "Client", name: str, paths: Union[PathLike, Iterable[PathLike]], *,
                  format: str, checksums: bool, kind: Optional[str], device: DeviceLike,
                  access: str, ephemeral: bool, expire_after: float, content_id: bytes,
                  files_id: bytes, progress: Optional[Progress],
                  timeout: Optional[float]) -> PublishedFiles:
    """See Client.publish_files()."""
    _check_format(format)
    files = files_of(paths)
    found = _format_of(files, format)
    options: Dict[str, Any] = {"access": access, "ephemeral": ephemeral, "timeout": timeout,
                               "expire_after": expire_after, "content_id": content_id}
    if found in _FORMATS:
        return _publish_natively(client, name, files, _FORMATS[found], checksums, kind, device,
                                 progress, files_id, **options)
    before = [_state(path) for path in files]
    load = _load_checkpoints if found == "torch" else _load
    value, metadata, nbytes = load(client, files, found, kind, device, progress)
    if [_state(path) for path in files] != before:
        raise AbortedError("a file changed while it was read")
    if files_id and _gpumem.content_id(files, _FORMATS["bytes"]) != files_id:
        raise AbortedError("the files have changed since their content id was found")
    version = client.publish(name, value, metadata=metadata, **options)
    return PublishedFiles(version, len(files), len(value), nbytes)


def _publish_natively(client: "Client", name: str, files: List[str], form: int, checksums: bool,
                      kind: Optional[str], device: DeviceLike, progress: Optional[Progress],
                      files_id: bytes, *, access: str, ephemeral: bool, expire_after: float,
                      timeout: Optional[float], content_id: bytes) -> PublishedFiles:
    """Has the library load safetensors and bytes."""
    return PublishedFiles(*_gpumem.publish_files(
        client.handle, name, files, form, to_kind(kind), to_device(device), not checksums,
        to_scope(access), ephemeral, to_ms(expire_after), progress, to_ms(timeout), content_id,
        files_id))


def _load(client: "Client", files: List[str], form: str, kind: Optional[str], device: DeviceLike,
          progress: Optional[Progress]) -> Tuple[Dict[str, Any], Any, int]:
    """Returns copies of the files' arrays, metadata to publish with them, and their bytes."""
    arrays: Dict[str, FileArray] = {}
    metadata: Any = None
    for path in files:
        try:
            contents = _PARSERS[form](path)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path}: {error}") from error
        twice = arrays.keys() & contents.arrays.keys()
        if twice:
            raise InvalidArgumentError(f"{path}: an earlier file has the array {min(twice)}, too")
        arrays.update(contents.arrays)
        metadata = _joined(metadata, contents.metadata)
    copies = copy_to_memory(client, list(arrays.values()), to_device(device), kind, progress)
    return copies, metadata, sum(array.nbytes for array in arrays.values())


def _load_checkpoints(client: "Client", files: List[str], form: str, kind: Optional[str],
                      device: DeviceLike, progress: Optional[Progress]
                      ) -> Tuple[Dict[str, Any], Any, int]:
    del form
    from ._formats.checkpoint import load  # pylint: disable=import-outside-toplevel
    from .serving.frameworks import framework_of  # pylint: disable=import-outside-toplevel
    tensors = load(files)
    value, metadata = framework_of("torch").copy(client, tensors, kind, device, progress)
    return value, metadata, sum(one.numel() * one.element_size() for one in tensors.values())


def _joined(one: Any, other: Any) -> Any:
    """Returns the metadata of two files of a format: dictionaries, joined."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other if one is None else one
    return {**one, **{key: _joined(one.get(key), value) for key, value in other.items()}}


def _state(path: str) -> Tuple[int, ...]:
    found = os.stat(path)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
