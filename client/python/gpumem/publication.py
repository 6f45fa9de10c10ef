# SPDX-License-Identifier: Apache-2.0
"""Publications: arrays under a name, that others attach to and that can outlive their publisher.

The metadata of a publication describes its arrays, as JSON, for any reader:

    {"format": "gpumem-arrays/1", "single": false, "metadata": null,
     "arrays": [{"name": "w", "dtype": "float32", "shape": [2, 3], "strides": null,
                 "segment": 0, "offset": 0, "framework": "numpy"}]}

Strides are bytes, null in C order; an array without elements has the segment null. "single" means
that one array was published and not arrays by name. A publication of files (gpumemctl publish
--file, "gpumem-files/1") attaches as one array of bytes for each.
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import _gpumem, arrays
from ._dtypes import DType
from ._listing import FORMAT, Listing, Row, paused_collection, read
from ._units import BACKENDS, KINDS, DeviceLike, to_ms, to_scope, to_seconds
from ._waiting import CancelToken, call
from .arrays import Array, Place
from .errors import DataLossError, InvalidArgumentError, NotFoundError
from .segment import Segment, placed

if TYPE_CHECKING:
    from .client import Client

_ALIGNMENT = 512  # bytes, of arrays that are copied together: what every framework asks for


@dataclass(frozen=True)
class PublicationInfo:
    """The newest version under a name, as the daemon lists it. Sizes in bytes, times in seconds
    (math.inf: never)."""

    tenant: str
    name: str
    version: int
    nbytes: int
    metadata_bytes: int
    segments: int
    attached_sessions: int  # to this version
    access: str  # "tenant" or "any"
    ephemeral: bool  # ends with its publisher's session
    age: float
    expire_after: float
    expires_in: float  # as things stand
    # For the caller's own tenant only, else 0 and "":
    publisher_session_id: int
    publisher_name: str
    publisher_pid: int
    publisher_alive: bool
    suspended_nbytes: int  # of nbytes, in the host tier; above 0: attach() brings it back first
    content_id: bytes  # names its contents; b"": none

    @classmethod
    def of_row(cls, row: Tuple[Any, ...]) -> "PublicationInfo":
        """Converts a row of the extension."""
        access = "any" if row[7] else "tenant"
        age, expire_after, expires_in = (to_seconds(time) for time in row[9:12])
        values: List[Any] = [*row[:7], access, row[8], age, expire_after, expires_in, *row[12:]]
        return cls(*values)


# ---- Publishing ----------------------------------------------------------------------------------


def _named(value: Any) -> Tuple[bool, Dict[str, Any]]:
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise InvalidArgumentError(f"the name of an array must be str, not {name!r}")
        return False, dict(value)
    return True, {"": value}


class _Copies:
    """Copies of arrays, one after another, in one segment for each device. Arrays that are the same
    memory in the same way are copied once."""

    def __init__(self, client: "Client", kind: Optional[str], device: DeviceLike) -> None:
        self._client, self._kind, self._device = client, kind, device
        self._plans: Dict[DeviceLike, List[Tuple[str, Array, int]]] = {}
        self._sizes: Dict[DeviceLike, int] = {}
        self._seen: Dict[Tuple[Any, ...], int] = {}  # the offsets of copies

    def add(self, name: str, source: Array) -> None:
        device = self._device
        if device is None and source.backend == "cuda" and not source.place.on_host:
            device = source.device or None
        key = (device, source.ptr, source.shape, source.strides, source.dtype)
        offset = self._seen.get(key)
        if offset is None:
            offset = -(-self._sizes.get(device, 0) // _ALIGNMENT) * _ALIGNMENT
            self._sizes[device] = offset + source.nbytes
            self._seen[key] = offset
        self._plans.setdefault(device, []).append((name, source, offset))

    def make(self) -> Dict[str, Array]:
        """Makes the copies, by name; they keep their segments."""
        made = {}
        for device, plan in self._plans.items():
            segment = self._client.acquire(self._sizes[device], kind=self._kind, device=device)
            filled = set()
            for name, source, offset in plan:
                low, _ = arrays.extent(source.shape, source.strides, source.itemsize)
                dense = arrays.is_dense(source) and low == 0
                copy = segment.array(source.shape, source.dtype, offset=offset,
                                     strides=source.strides if dense else None)
                if offset not in filled:
                    arrays.copy_into(copy, source)
                filled.add(offset)
                made[name] = copy
        return made


def publish(client: "Client", name: str, value: Any, *, metadata: Any, access: str,
            ephemeral: bool, expire_after: float, kind: Optional[str], device: DeviceLike,
            timeout: Optional[float], content_id: bytes) -> int:
    """See Client.publish()."""
    single, sources = _named(value)
    found: Dict[str, Array] = {}
    copies = _Copies(client, kind, device)
    for key, source in sources.items():
        array = placed(arrays.asarray(source))
        found[key] = array
        if array.size > 0 and not isinstance(array.owner, Segment):
            copies.add(key, array)
    found.update(copies.make())

    segments: List[Segment] = []
    listed = []
    for key, array in found.items():
        index = None
        if array.size > 0:
            if array.owner not in segments:
                segments.append(array.owner)
            index = segments.index(array.owner)
        listed.append({"name": key, "dtype": array.dtype, "shape": array.shape,
                       "strides": None if array.c_contiguous else array.strides,
                       "segment": index, "offset": array.offset if index is not None else 0,
                       "framework": arrays.framework_of(sources[key])})
    if not segments:
        raise InvalidArgumentError("there is nothing to publish: no array has elements")
    said = {"format": FORMAT, "single": single, "metadata": metadata, "arrays": listed}
    try:
        blob = json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"JSON cannot express the metadata: {error}") from error
    _gpumem.cuda_synchronize()
    return _gpumem.publish(client.handle, name, [segment.handle for segment in segments], blob,
                           to_scope(access), ephemeral, to_ms(expire_after), to_ms(timeout),
                           content_id)


# ---- Attaching -----------------------------------------------------------------------------------


def attach(client: "Client", name: str, *, version: int, wait: float, writable: bool,
           map_devices: Sequence[str], address: int, revocable: bool, timeout: Optional[float],
           cancel: Optional[CancelToken]) -> "Publication":
    """See Client.attach()."""

    def work(token: Optional[CancelToken]) -> _gpumem.Handle:
        return _gpumem.attach(client.handle, name, max(version, 1) if wait else 0, to_ms(wait),
                              None if token is None else token.handle, map_devices, address,
                              to_ms(timeout), revocable, writable)

    made = Publication(name, call(work, cancel) if wait else work(cancel), readonly=not writable)
    if made.version < version:
        there = made.version
        made.close(defer=True)
        raise NotFoundError(f"publication {name!r} has version {there}, not {version} yet: pass "
                            "`wait` to wait for that version")
    return made


class Publication(Mapping[str, Array]):
    """One version of a publication, attached: its arrays by name.

    name, version, tenant (the owner), content_id, metadata (the publisher's addition), blob (all of its
    metadata, as bytes), segments (each as an Array of bytes), arrays (by name), single (one array
    was published, without a name). Read-only unless attached as writable: a write faults.

    close() and the end of a `with` block unmap it, the latter once its arrays are gone.
    """

    def __init__(self, name: str, handle: _gpumem.Handle, readonly: bool = True) -> None:
        self.name = name
        self._handle = handle
        self.readonly = readonly
        (_, self.nbytes, self.version, self.tenant, self.blob, infos,
         self.content_id) = _gpumem.attachment_info(handle)
        self._infos = infos
        self._rows, self.single, self.metadata = self._read()
        self._devices: Dict[int, Tuple[int, int]] = {}  # by segment, as DLPack names them

    def _read(self) -> Listing:
        try:
            with paused_collection():
                return read(self.blob, [info[1] for info in self._infos])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError,
                OverflowError) as error:
            raise DataLossError(f"the metadata of publication {self.name!r} names a format of "
                                f"gpumem's, but is not well-formed: {error!r:.300}") from error

    def _place(self, index: int) -> Tuple[int, Place]:
        pointer, _, device, kind, backend, _, _, _, registered = self._infos[index][:9]
        return pointer, Place(device, BACKENDS[backend], KINDS[kind], registered)

    # ---- Arrays

    def __getitem__(self, name: str) -> Array:
        row = self._rows[name]
        if row.segment is None:
            return Array(None, 0, row.shape, row.dtype, place=self._place(0)[1],
                         readonly=self.readonly, owner=self)
        pointer, place = self._place(row.segment)
        return Array(self._handle, pointer + row.offset, row.shape, row.dtype, strides=row.strides,
                     place=place, readonly=self.readonly, owner=self, offset=row.offset,
                     segment=row.segment)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def arrays(self) -> Dict[str, Array]:
        """Returns all arrays, by name."""
        with paused_collection():
            return {name: self[name] for name in self._rows}

    def row(self, name: str) -> Row:
        """For other parts of the package: the description of an array."""
        return self._rows[name]

    def capsule(self, row: Row, dtype: DType) -> Any:
        """For other parts of the package: returns a DLPack capsule, in the form before DLPack 1.0, of
        an array with elements, as elements of another type of the same size. It does not tell
        that the memory is read-only. Costs less than __dlpack__() of the array."""
        index = row.segment or 0
        if index not in self._devices:
            self._devices[index] = self._place(index)[1].dlpack_device()
        return _gpumem.dlpack_view(self._handle, self._infos[index][0] + row.offset, row.shape,
                                   row.strides, dtype.itemsize, *self._devices[index], dtype.code,
                                   8 * dtype.itemsize)

    @property
    def value(self) -> Any:
        """Returns the published value: one Array, or a dict of them."""
        return self[""] if self.single else self.arrays

    @property
    def frameworks(self) -> Dict[str, str]:
        """Returns each array's library at the time of publishing: "numpy", "torch", …"""
        return {name: row.framework for name, row in self._rows.items()}

    @property
    def segments(self) -> List[Array]:
        """Returns each segment in the publisher's order, as bytes."""
        made = []
        for index, info in enumerate(self._infos):
            pointer, place = self._place(index)
            made.append(Array(self._handle, pointer, (info[1],), "uint8", place=place,
                              readonly=self.readonly, owner=self, segment=index))
        return made

    # ---- Its end

    @property
    def closed(self) -> bool:
        """True if it was closed; with close(defer=True) its arrays may still live."""
        return self._handle.closed

    @property
    def views(self) -> int:
        """The number of its present views."""
        return self._handle.views

    def close(self, defer: bool = False) -> None:
        """Unmaps and releases all of it. While arrays of it live, raises FailedPreconditionError;
        with `defer`, the end of the last of them completes it instead."""
        self._handle.close(defer)

    def __enter__(self) -> "Publication":
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close(True)

    def __repr__(self) -> str:
        return (f"<gpumem.Publication {self.name!r} of {self.tenant}, version {self.version}, "
                f"{len(self._rows)} arrays{', closed' if self.closed else ''}>")
