# SPDX-License-Identifier: Apache-2.0
"""Sessions with the node's daemon."""
from __future__ import annotations

import math
import os
from typing import Any, Iterable, List, Optional, Sequence, Union

from . import _gpumem, arrays, files, publication
from ._dtypes import parse
from ._suspend import Suspending
from ._units import BACKENDS, KINDS, DeviceLike, to_device, to_kind, to_ms, to_scope
from ._waiting import CancelToken, call
from .arrays import Array, Place, Shape
from .claim import Claim, attach_or_claim
from .errors import InvalidArgumentError
from .event import Event
from .files import PathLike, Progress, PublishedFiles
from .pool import Pool
from .publication import Publication, PublicationInfo
from .segment import Block, Layout, Segment, Ticket, placed, segments_of
from .usage import Device, DeviceUsage, MakingTenants, Peer, Usage
from .watch import Quota, Watch

MAX_AT_ONCE = 253  # segments, whose descriptors are sent in one message (SCM_RIGHTS of unix(7))


def _ticket_text(ticket: Union[Ticket, str]) -> str:
    value = str(ticket)
    if not (value.isascii() and value.isprintable()):
        raise InvalidArgumentError("invalid ticket: it must have printable ASCII characters only")
    return value


class Client(Suspending, MakingTenants):
    """A session with the daemon, made by gpumem.connect().

    tenant (who is billed), rule (which named it), daemon_version, session_id. Any thread may use
    it. close() or the end of a `with` block ends it; the objects made of it live on. If the daemon
    restarts, the session resumes. A child after fork() cannot use it.

    Sizes are bytes, times seconds (math.inf: no limit; a `timeout` of None: the connection's).
    Every call may raise:
    - UnavailableError: the daemon is gone, or no longer knows the session.
    - DeadlineExceededError: it did not answer in time.
    - ResourceExhaustedError: too many calls at once.
    - FailedPreconditionError: closed, or in a child after fork().
    """

    def __init__(self, runtime_dir: Union[str, "os.PathLike[str]", None] = None, *,
                 tenant: Optional[str] = None, name: Optional[str] = None, timeout: float = 30.0,
                 reconnect: bool = True, wait: bool = True) -> None:
        folder = None if runtime_dir is None else os.fspath(runtime_dir)
        self._handle = _gpumem.connect(folder, tenant, name, to_ms(timeout), reconnect, wait)
        self.tenant, self.rule, self.daemon_version, self.session_id = _gpumem.client_info(
            self._handle)

    @property
    def handle(self) -> _gpumem.Handle:
        """For other parts of the package."""
        return self._handle

    @property
    def closed(self) -> bool:
        """True if close() was called."""
        return self._handle.closed

    def close(self) -> None:
        """Ends the session, once the objects made of it have ended."""
        self._handle.close(True)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (f"<gpumem.Client {self.session_id} of {self.tenant}"
                f"{', closed' if self.closed else ''}>")

    # ---- Devices and usage

    def devices(self) -> List[Device]:
        """Returns the devices' present state."""
        made = []
        for row in _gpumem.devices(self._handle):
            values: List[Any] = [*row[:3], BACKENDS[row[3]], *row[4:9],
                                 tuple(KINDS[kind] for kind in row[9]),
                                 tuple(Peer(*peer) for peer in row[10])]
            made.append(Device(*values))
        return made

    def usage(self) -> Usage:
        """Returns the present usage of the client's tenant, and its limits in force."""
        tenant, charged, segments, sessions, waiting, devices = _gpumem.usage(self._handle)
        return Usage(tenant, charged, segments, sessions, waiting,
                     tuple(DeviceUsage(*device) for device in devices))

    def quota(self, timeout: float = 30.0) -> Quota:
        """Returns the quota of the client's tenant, as the daemon has it now. usage() has the
        limits in force on each device, with shares of it as bytes. Raises TimeoutError."""
        with self.watch() as watch:  # it begins with that
            while True:
                quota = watch.get(timeout).quota
                if quota is not None:
                    return quota

    def watch(self, **handlers: Any) -> Watch:
        """Returns a gpumem.Watch, which listens to notices of the daemon."""
        return Watch(self, **handlers)

    # ---- Segments

    def acquire(self, bytes: int, *,  # pylint: disable=redefined-builtin
                kind: Optional[str] = None, device: DeviceLike = None, tag: str = "",
                map_devices: Sequence[str] = (), address: int = 0, scratch: bool = False,
                timeout: Optional[float] = None, cancel: Optional[CancelToken] = None,
                wait: float = 0, revocable: bool = False, presses_others: bool = True) -> Segment:
        """Acquires a new segment of `bytes`, rounded up to the device's granularity.

        kind: "vmm" or another that the device makes (Device.kinds); None: the device's default.
        device: a UUID, PCI bus id, ordinal or "most-free"; None: the first that serves.
        map_devices: the devices whose GPUs will use it. address: the address to map it at; 0: any.
        wait: seconds to wait for memory that others hold; Ctrl-C and `cancel` end the wait.
        tag: a name to select it by. scratch: its bytes are dropped when it is suspended (kind vmm).

        Raises ResourceExhaustedError with its `denial` if a quota or the device refuses it, also
        after the wait; InvalidArgumentError; NotFoundError: no such device; UnimplementedError: the
        device does not make that kind; CancelledError.
        """
        return self.acquire_many(
            bytes, 1, kind=kind, device=device, map_devices=map_devices, address=address, wait=wait,
            timeout=timeout, cancel=cancel, revocable=revocable, presses_others=presses_others,
            tag=tag, scratch=scratch)[0]

    def acquire_many(self, bytes: int, count: int, *,  # pylint: disable=redefined-builtin
                     kind: Optional[str] = None, device: DeviceLike = None,
                     map_devices: Sequence[str] = (), address: int = 0, wait: float = 0,
                     timeout: Optional[float] = None, cancel: Optional[CancelToken] = None,
                     revocable: bool = False, presses_others: bool = True, tag: str = "",
                     scratch: bool = False) -> List[Segment]:
        """As acquire(), for 1 to 253 segments, all or none, contiguous where the kind allows it."""
        if not 1 <= count <= MAX_AT_ONCE:
            raise InvalidArgumentError(f"one call acquires from 1 to {MAX_AT_ONCE}, not {count}")

        def work(token: Optional[CancelToken]) -> List[_gpumem.Handle]:
            return _gpumem.acquire(
                self._handle, bytes, to_device(device), to_kind(kind), map_devices, address,
                to_ms(timeout), to_ms(wait), None if token is None else token.handle, revocable,
                not presses_others, tag, scratch, count)

        return segments_of(work(cancel) if wait == 0 else call(work, cancel))

    def open(self, ticket: Union[Ticket, str], *, read_only: bool = False,
             map_devices: Sequence[str] = (), address: int = 0, timeout: Optional[float] = None,
             revocable: bool = False) -> Any:
        """Opens a ticket: returns a Segment, a Block or, for share(array), an Array of the same
        memory.

        Raises NotFoundError: its lease has ended, or there was none; PermissionDeniedError: it is
        for another tenant; InvalidArgumentError: no ticket.
        """
        value = _ticket_text(ticket)
        layout = ticket.layout if isinstance(ticket, Ticket) else None
        memory: Union[Segment, Block]
        if value.startswith("gmb_"):
            memory = self._open_block(value, read_only, map_devices, timeout, revocable)
        else:
            handles = _gpumem.open(self._handle, [value], read_only, map_devices, address,
                                   to_ms(timeout), revocable)
            memory = Segment(handles[0], read_only)
        if layout is None:
            return memory
        return memory.array(layout.shape, layout.dtype, offset=layout.offset,
                            strides=layout.strides)

    def open_many(self, tickets: Sequence[Union[Ticket, str]], *, read_only: bool = False,
                  map_devices: Sequence[str] = (), address: int = 0,
                  timeout: Optional[float] = None, revocable: bool = False) -> List[Segment]:
        """Opens several segments in one call, all or none. As open()."""
        return segments_of(_gpumem.open(self._handle, [_ticket_text(ticket) for ticket in tickets],
                                        read_only, map_devices, address, to_ms(timeout),
                                        revocable), read_only)

    def _open_block(self, value: str, read_only: bool, map_devices: Sequence[str],
                    timeout: Optional[float], revocable: bool) -> Block:
        handle, pointer, nbytes, device, kind, backend = _gpumem.open_block(
            self._handle, value, read_only, map_devices, to_ms(timeout), revocable)
        return Block(handle, pointer, nbytes, Place(device, BACKENDS[backend], KINDS[kind]),
                     readonly=read_only)

    # ---- Pools and events

    def pool(self, **options: Any) -> Pool:
        """Makes a pool of blocks in memory that this client leases: see gpumem.Pool."""
        return Pool(self, **options)

    def create_event(self, name: Optional[str] = None, *, segment: Optional[Segment] = None,
                     device: DeviceLike = None) -> Event:
        """Makes an interprocess event, under a name (for all sessions of the tenant) or beside a
        segment (for all sessions that lease it).

        Raises AlreadyExistsError, InvalidArgumentError, NotFoundError.
        """
        return Event(_gpumem.event_create(
            self._handle, name, None if segment is None else segment.handle, to_device(device)))

    def open_event(self, name: str) -> Event:
        """Opens the event of that name. Raises NotFoundError if there is none."""
        return Event(_gpumem.event_open(self._handle, name))

    def open_events(self, segment: Segment) -> List[Event]:
        """Opens the events beside a segment, 64 at most."""
        return [Event(handle) for handle in _gpumem.events_open(self._handle, segment.handle)]

    # ---- Arrays

    def empty(self, shape: Shape, dtype: Any = "float32", *, pool: Optional[Pool] = None,
              stream: int = 0, **options: Any) -> Array:
        """Returns an array in brokered memory: in a new segment (`options` as of acquire()), or in
        a block of `pool`, for work on `stream`. A segment holds zeros unless it is `reused`.

        Its memory is given back when the array and all views of it are gone. Raises as acquire()
        and Pool.allocate().
        """
        found = parse(dtype)
        sizes = arrays.to_shape(shape, found.itemsize)
        nbytes = found.itemsize
        for size in sizes:
            nbytes *= size
        if nbytes == 0:
            return Array(None, 0, sizes, found, place=arrays.nowhere())
        memory: Union[Segment, Block]
        if pool is not None:
            memory = pool.allocate(nbytes, stream)
        else:
            memory = self.acquire(nbytes, **options)
        return memory.array(sizes, found, stream=None if pool is None else stream)

    def copy(self, source: Any, **options: Any) -> Array:
        """Returns a copy of any library's array in brokered memory; options as of empty(). Arrays
        without gaps keep the order of their dimensions."""
        array = arrays.asarray(source)
        made = self.empty(array.shape, array.dtype_object, **options)
        if arrays.is_dense(array) and arrays.extent(array.shape, array.strides, 1)[0] == 0:
            made = made.with_strides(array.strides)
        arrays.copy_into(made, array)
        return made

    def share(self, array: Any, scope: str = "tenant") -> Ticket:
        """Returns the picklable ticket of an array in memory that was acquired or allocated here,
        for open() in another process. It is valid as long as the array's memory is held here.

        Raises InvalidArgumentError if the array is not in brokered memory: see copy().
        """
        found = placed(arrays.asarray(array))
        owner = found.owner
        if not isinstance(owner, (Segment, Block)):
            raise InvalidArgumentError("the array is not in a segment or block of this process: "
                                       "share a copy of it, made with copy()")
        if to_scope(scope) != 0 and isinstance(owner, Block):
            raise InvalidArgumentError("only sessions of the same tenant can open blocks of a pool: "
                                       "share a copy of the array, made with copy()")
        ticket = owner.share(scope) if isinstance(owner, Segment) else owner.share()
        return Ticket(ticket.value, Layout(found.shape, found.dtype, found.strides, found.offset,
                                           arrays.framework_of(array)))

    # ---- Publications

    def publish(self, name: str, value: Any, *, metadata: Any = None, access: str = "tenant",
                ephemeral: bool = False, expire_after: float = 0, kind: Optional[str] = None,
                device: DeviceLike = None, timeout: Optional[float] = None,
                content_id: bytes = b"") -> int:
        """Publishes an array, or arrays by name, of any library, and returns the version.

        Arrays in segments of this process (empty(), acquire()) are published without a copy. Other
        arrays are copied once, into memory of `kind` on `device` (None: a GPU's array onto its GPU,
        else the default). The call waits for GPU work on them; the publisher must not write to them
        afterwards. `metadata` is any JSON value, for those that attach. The publication outlives
        this process, unless it is `ephemeral`. It ends once no session has been attached for
        `expire_after` seconds (0: never). content_id: names what the arrays contain, for
        attach_or_claim(): at most 64 bytes of any value; ends this client's claim on it.

        Raises InvalidArgumentError, ResourceExhaustedError.
        """
        return publication.publish(self, name, value, metadata=metadata, access=access,
                                   ephemeral=ephemeral, expire_after=expire_after, kind=kind,
                                   device=device, timeout=timeout, content_id=content_id)

    def publish_files(self, name: str, paths: Union[PathLike, Iterable[PathLike]], *,
                      format: str = "auto",  # pylint: disable=redefined-builtin
                      checksums: bool = True, kind: Optional[str] = None,
                      device: DeviceLike = None, access: str = "tenant", ephemeral: bool = False,
                      expire_after: float = 0, content_id: bytes = b"", files_id: bytes = b"",
                      progress: Optional[Progress] = None,
                      timeout: Optional[float] = None) -> PublishedFiles:
        """Copies files into new memory and publishes it (gpumem.files). Several threads read.

        `paths`: a file, files, or a folder of safetensors. `format`: "safetensors", "npy", "npz",
        "gguf", "torch" (checkpoints, only their tensors), "bytes" (a file is one array), or "auto":
        by the files' names. Only safetensors and bytes are published together. `checksums`:
        computes one of each array of these two, for `gpumemctl verify`. `progress(done, total)` is
        called with numbers of bytes; an exception of it ends the call. `files_id`: what
        gpumem.content_id() returned for the files: if they have changed since, AbortedError. The
        rest as in publish().

        Raises NotFoundError, PermissionDeniedError, InvalidArgumentError (before memory is taken),
        ResourceExhaustedError, DataLossError, and AbortedError if a file changes meanwhile.
        """
        return files.publish_files(self, name, paths, format=format, checksums=checksums, kind=kind,
                                   device=device, access=access, ephemeral=ephemeral,
                                   expire_after=expire_after, content_id=content_id,
                                   files_id=files_id, progress=progress, timeout=timeout)

    def attach(self, name: str, *, version: int = 0, wait: float = 0, writable: bool = False,
               map_devices: Sequence[str] = (), address: int = 0, revocable: bool = False,
               timeout: Optional[float] = None, cancel: Optional[CancelToken] = None
               ) -> Publication:
        """Maps the newest version of a publication into this process.

        version: at least that one. wait: seconds to wait for it, and for the name itself; Ctrl-C
        and `cancel` end the wait. writable: else a write faults. "TENANT/NAME" is another tenant's.

        Raises NotFoundError: there is none; DeadlineExceededError: the wait is over;
        PermissionDeniedError; CancelledError.
        """
        return publication.attach(self, name, version=version, wait=wait, writable=writable,
                                  map_devices=map_devices, address=address, revocable=revocable,
                                  timeout=timeout, cancel=cancel)

    def attach_or_claim(self, name: str, content_id: bytes, *, wait: float = math.inf,
                        cancel: Optional[CancelToken] = None, writable: bool = False,
                        map_devices: Sequence[str] = (), address: int = 0,
                        timeout: Optional[float] = None) -> Union[Publication, Claim]:
        """Maps the publication if its newest version has this content id (1 to 64 bytes). Else
        returns a Claim: the caller is to load the contents and publish them (Claim.publish()).

        Of all sessions of the tenant one has the claim. Other calls for the same contents wait, for
        `wait` seconds, until they are published, or the claim is released or its process ends;
        then the first that waits gets it. Ctrl-C and `cancel` end the wait. Other contents under
        the name are never attached to. A session can have, and wait for, 64 claims.

        Raises DeadlineExceededError: another session has the claim, also after the wait;
        NotFoundError: the name is another tenant's ("TENANT/NAME"), without these contents;
        ResourceExhaustedError; UnimplementedError: the daemon is too old; CancelledError.
        """
        return attach_or_claim(self, name, content_id, wait=wait, cancel=cancel, writable=writable,
                               map_devices=map_devices, address=address, timeout=timeout)

    def unpublish(self, name: str) -> int:
        """Ends a publication, and returns its version. Attached sessions keep it.

        Raises NotFoundError."""
        return _gpumem.unpublish(self._handle, name)

    def publications(self, tenant: Optional[str] = None) -> List[PublicationInfo]:
        """Lists the publications that this client may attach to, of one tenant or of all."""
        return [PublicationInfo.of_row(row) for row in _gpumem.publications(self._handle, tenant)]


def connect(runtime_dir: Union[str, "os.PathLike[str]", None] = None, *,
            tenant: Optional[str] = None, name: Optional[str] = None, timeout: float = 30.0,
            reconnect: bool = True, wait: bool = True) -> Client:
    """Begins a session with the daemon.

    runtime_dir: the folder of its sockets; None: $GPUMEM_RUNTIME_DIR, else as found. tenant: the
    tenant to bill; None: the first that the daemon's rules allow. name: shown to operators; None:
    the program's. timeout: seconds for this and each later call. reconnect: resume the session when
    the daemon restarts. wait: if no daemon listens, wait for one within the timeout; only if the
    folder of its sockets exists.

    Raises UnavailableError: no daemon; PermissionDeniedError: no tenant for this process, or not
    that one; ResourceExhaustedError: the tenant's max_sessions; FailedPreconditionError: in a child
    after fork() of a connected parent.
    """
    return Client(runtime_dir, tenant=tenant, name=name, timeout=timeout, reconnect=reconnect,
                  wait=wait)
