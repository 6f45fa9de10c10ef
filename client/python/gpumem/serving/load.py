# SPDX-License-Identifier: Apache-2.0
"""load_or_attach(): one process of the machine loads weights, and all of them map them."""
from __future__ import annotations

import math
import time
from typing import (TYPE_CHECKING, Any, Callable, Iterable, List, Mapping, Optional,
                    Sequence, Tuple, Union)

from .. import files
from .._formats.paths import PathLike, files_of
from .._units import DeviceLike
from .._waiting import CancelToken
from ..claim import Claim
from ..errors import DeadlineExceededError, InvalidArgumentError
from ..publication import Publication
from .frameworks import Framework, Progress, framework_of
from .slices import Rank, check_rank, content_id_of, name_of
from .weights import Weights

if TYPE_CHECKING:
    from ..client import Client

# Files, or a function that returns tensors by name: all at once, or one after another.
Source = Union[PathLike, Iterable[PathLike],
               Callable[[], Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]]]


def _client_of(client: Optional["Client"]) -> "Client":
    if client is not None:
        return client
    from .. import default_client  # pylint: disable=import-outside-toplevel
    return default_client()


def _content_id(paths: Optional[List[str]], given: Union[bytes, str, None]) -> bytes:
    if given is not None:
        found = given.encode() if isinstance(given, str) else bytes(given)
        if not found:
            raise InvalidArgumentError("`content_id` is empty")
        return found
    if paths is None:
        raise InvalidArgumentError(
            "a loader needs a `content_id`, such as the checkpoint's revision and the loader's "
            "options: gpumem cannot see what it would load, and two models of the same shapes must "
            "never be taken for each other")
    return files.content_id(paths)


def load_or_attach(name: str, source: Source, *, device: DeviceLike = None,
                   rank: Optional[Rank] = None, writable: bool = False,
                   content_id: Union[bytes, str, None] = None, wait: float = math.inf,
                   framework: str = "torch", client: Optional["Client"] = None,
                   progress: Optional[Progress] = None, kind: Optional[str] = None,
                   access: str = "tenant", expire_after: float = 0,
                   map_devices: Sequence[str] = (), timeout: Optional[float] = None,
                   cancel: Optional[CancelToken] = None) -> Weights:
    """Returns a model's weights as mapped tensors. The first process that asks for this name and
    content loads them, and publishes them; the others wait for it, and attach. Also the first uses
    the published memory, not its loader's, so a further worker adds no memory. If the process that
    loads ends, another one loads; an exception of its loader is raised there alone.

    source:
    - a file, files, or a folder, of which the *.safetensors are taken, by their index if it has one.
      Also .npy, .npz, .gguf, and PyTorch's checkpoints (.pt, .pth, .bin), which are never unpickled
      beyond their tensors.
    - a function that returns tensors by name, on the GPU or the CPU: what an engine's own loader
      makes. If it returns pairs of name and tensor one after another (a generator), each is copied
      as it comes, on the current stream, and the loader need not hold all of them. Tied weights are
      stored once.

    content_id: identifies the content; other content under the name is replaced by a new version.
    Files have one that is made of their bytes. A loader needs one given.
    rank: (rank, count), for tensor parallelism: each rank has a publication, NAME.rankR-of-N, with
    what its source has. See Weights.slice() for ranks that share one publication.
    device, kind: where to; tensors of a GPU stay on their GPU. wait: seconds to wait for a process
    that loads. writable: every process's writes are seen by all. framework: "torch", "numpy" (host
    backend, pinned memory) or "gpumem" (gpumem.Array). progress: called with the bytes that were
    copied, and those of all (0: not known), in the process that loads. expire_after: the
    publication ends after so many seconds without a process that uses it (0: never). access,
    map_devices, timeout, cancel: as of Client.publish() and Client.attach().

    Raises InvalidArgumentError: a loader without a content id, a bad file, a bad rank;
    NotFoundError: no such file; ResourceExhaustedError: no room; DeadlineExceededError: another
    process still loads after `wait`; PermissionDeniedError; CancelledError; what the loader raises.
    """
    session, adapter = _client_of(client), framework_of(framework)
    ranks = None if rank is None else check_rank(rank)
    paths = None if callable(source) else files_of(source)
    given = _content_id(paths, content_id)
    # Has the library check, when it has read them, that the files are still those.
    files_id = given if content_id is None else b""
    identity = content_id_of(given, ranks)
    full = name_of(name, ranks)
    end = time.monotonic() + wait
    while True:
        found = session.attach_or_claim(
            full, identity, wait=max(0.0, end - time.monotonic()), cancel=cancel, writable=writable,
            map_devices=map_devices, timeout=timeout)
        if isinstance(found, Publication):
            return Weights(session, found, adapter, loaded=False, map_devices=map_devices)
        with found:
            version = _publish(session, adapter, found, source, paths, files_id, progress,
                               {"device": device, "kind": kind, "access": access,
                                "expire_after": expire_after, "timeout": timeout})
        adapter.dropped()
        publication = session.attach(full, version=version, writable=writable,
                                     map_devices=map_devices, timeout=timeout)
        if publication.content_id == identity:
            return Weights(session, publication, adapter, loaded=True, map_devices=map_devices)
        # Another process has published other content under the name since.
        publication.close(defer=True)
        if time.monotonic() >= end:
            raise DeadlineExceededError(f"other content is published as {full!r} again and again")


def _publish(session: "Client", adapter: Framework, claim: Claim, source: Any,
             paths: Optional[List[str]], files_id: bytes, progress: Optional[Progress],
             options: Any) -> int:
    """Loads the weights, publishes them, and returns the version. Keeps nothing of them."""
    if paths is not None:
        published = session.publish_files(claim.name, paths, content_id=claim.content_id,
                                          files_id=files_id, progress=progress, **options)
        return int(published.version)
    value, metadata = adapter.copy(session, source(), options["kind"], options["device"], progress)
    return int(claim.publish(value, metadata=metadata, **options))


def push(name: str, tensors: Any, *, framework: str = "torch", client: Optional["Client"] = None,
         device: DeviceLike = None, kind: Optional[str] = None,
         content_id: Union[bytes, str] = b"", **options: Any) -> int:
    """Publishes tensors by name as the next version, and returns it: for a trainer whose workers
    call Weights.update() or load_or_attach(). Copies each tensor once, on its GPU, into new memory.

    Versions are whole: a worker that still uses an old one keeps it. Once the last has let go, the
    daemon keeps its memory for the tenant's next request of the same size (`max_retained` of its
    quota). So two sets of memory alternate, and a push of the same tensors allocates nothing.

    tensors: by name, pairs, or a module. options: as of Client.publish(). Raises
    ResourceExhaustedError, InvalidArgumentError.
    """
    session, adapter = _client_of(client), framework_of(framework)
    found = content_id.encode() if isinstance(content_id, str) else content_id
    value, metadata = adapter.copy(session, tensors, kind, device, None)
    return session.publish(name, value, metadata=metadata, kind=kind, device=device,
                           content_id=found, **options)
