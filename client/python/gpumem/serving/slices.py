# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a model's tensors, for tensor parallelism. Pure functions."""
from __future__ import annotations

import fnmatch
import hashlib
import operator
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..errors import InvalidArgumentError

# The dimension that tensors are divided in, by a pattern of their names (fnmatch); None: they are
# whole on every rank.
Plan = Mapping[str, Optional[int]]
Rank = Tuple[int, int]  # the rank, and how many there are
MAX_CONTENT_ID = 64  # bytes


class Part(NamedTuple):
    """A part of a tensor: `length` elements of a dimension, from `start` on."""

    dim: int
    start: int
    length: int


def check_rank(rank: Any) -> Rank:
    """Returns the rank. Raises InvalidArgumentError unless it is one of (0, n) to (n - 1, n)."""
    try:
        number, count = (operator.index(each) for each in rank)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"`rank` is (rank, count), not {rank!r}") from error
    if not 0 <= number < count:
        raise InvalidArgumentError(f"`rank` is (rank, count): there is no rank {number} of {count}")
    return number, count


def name_of(name: str, rank: Optional[Rank]) -> str:
    """Returns the name of the rank's publication."""
    return name if rank is None else f"{name}.rank{rank[0]}-of-{rank[1]}"


def content_id_of(content_id: bytes, rank: Optional[Rank]) -> bytes:
    """Returns the id of the rank's content: two ranks never have the same."""
    if rank is None and len(content_id) <= MAX_CONTENT_ID:
        return content_id
    said = b"whole" if rank is None else b"%d of %d" % rank
    return hashlib.sha256(b"gpumem-rank/1\0" + said + b"\0" + content_id).digest()


def part_of(name: str, shape: Sequence[int], rank: Rank, plan: Plan) -> Optional[Part]:
    """Returns the rank's part of a tensor, by the plan's first pattern that matches its name; None:
    all of it.

    Raises InvalidArgumentError: the tensor has no such dimension, or its size there is no multiple
    of the number of ranks.
    """
    for pattern, dim in plan.items():
        if fnmatch.fnmatchcase(name, pattern):
            break
    else:
        return None
    if dim is None:
        return None
    if not -len(shape) <= dim < len(shape):
        raise InvalidArgumentError(f"{name} has the shape {tuple(shape)}, without a dimension {dim}")
    dim %= len(shape)
    length, rest = divmod(shape[dim], rank[1])
    if rest:
        raise InvalidArgumentError(
            f"{name} has {shape[dim]} elements in dimension {dim}, no multiple of {rank[1]} ranks")
    return Part(dim, rank[0] * length, length)
