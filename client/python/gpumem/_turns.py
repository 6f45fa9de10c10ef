# SPDX-License-Identifier: Apache-2.0
"""Suspending the pools of frameworks: gpumem.torch.suspend() and the same of the others.

One gate for the process: frameworks share the default pools, so a step of one must not run while
another's function has them suspended.
"""
from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import threading
import time
import weakref
from typing import Any, Callable, ContextManager, Iterator, List, Optional

from . import _gpumem
from ._waiting import CancelToken
from .errors import DeadlineExceededError, FailedPreconditionError, ResourceExhaustedError
from .pool import Pool


def _deadline(wait: float) -> float:
    return time.monotonic() + wait


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0)


def _hold_time(attempt: int) -> float:
    """Returns how long a part of a resume is held, as HoldTime() in client/mapping/suspension.cc.
    """
    least = 0.25 * (1 << min(attempt, 6))
    return least * random.uniform(1, 3)


class Gate:
    """Any number of threads run steps, or one thread suspends and resumes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps = 0
        self._closed = False
        self._pools: List[Pool] = []  # suspended here
        self._returns = False  # the next step resumes, if the program serves requests
        self._turn = threading.Lock()  # held by a thread that suspends or resumes
        self._of_thread = threading.local()
        # Set by gpumem.torch.serve().
        self.step_wait: Optional[float] = None  # seconds that a step waits for memory
        self.active: Callable[[], None] = lambda: None  # called when a step begins and ends

    # ---- Steps

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Runs a `with` block while nothing is suspended; blocks until then. May be nested."""
        depth = getattr(self._of_thread, "depth", 0)
        if depth == 0:
            self._enter()
        self._of_thread.depth = depth + 1
        try:
            if depth == 0:
                self.active()
            yield
        finally:
            self._of_thread.depth = depth
            if depth == 0:
                with self._changed:
                    self._steps -= 1
                    self._changed.notify_all()
                self.active()

    @property
    def in_step(self) -> bool:
        """True in a thread that runs a step."""
        return getattr(self._of_thread, "depth", 0) > 0

    def _enter(self) -> None:
        """Begins a step. Blocks while anything is suspended, and resumes it if that is the next
        step's task."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._closed or self._step_resumes())
                if not self._closed:
                    self._steps += 1
                    return
                wait = self.step_wait
            self.resume(math.inf if wait is None else wait, None, None, for_step=True)

    def _step_resumes(self) -> bool:
        return self._returns and self.step_wait is not None

    def _set_returns(self, returns: bool) -> None:
        with self._changed:
            self._returns = returns
            self._changed.notify_all()

    def _close(self, deadline: float) -> None:
        """Lets no step begin, and blocks until none runs. After an error the caller opens the gate.
        """
        with self._changed:
            self._closed = True
            left = min(_left(deadline), threading.TIMEOUT_MAX)
            if not self._changed.wait_for(lambda: self._steps == 0, left):
                raise DeadlineExceededError("a step of the program has not ended within the wait")

    def _open(self) -> None:
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def _alone(self, deadline: float) -> Iterator[None]:
        """Excludes other threads that suspend or resume."""
        if self.in_step:
            raise FailedPreconditionError(
                "a step of running() cannot suspend or resume: it would wait for itself")
        left = min(_left(deadline), threading.TIMEOUT_MAX)
        if not self._turn.acquire(timeout=left):  # pylint: disable=consider-using-with
            raise DeadlineExceededError("another thread suspends or resumes")
        try:
            yield
        finally:
            self._turn.release()

    # ---- Suspending

    @property
    def suspended(self) -> bool:
        """True from suspend() to resume()."""
        return bool(self._pools)

    def suspend(self, wait: float, timeout: Optional[float], returns: bool = False) -> None:
        """Suspends those of the frameworks' pools that are not suspended, all or none. `returns`:
        the next step resumes, unless all was suspended before."""
        deadline = _deadline(wait)
        with self._alone(deadline):
            by_step = self._returns or not self._pools  # as before, or as this call says
            done: List[Pool] = []
            try:
                self._close(deadline)
                for settle in _settles:
                    settle()
                for pool in _pools():
                    if _resident(pool):
                        done.append(pool)
                        pool.suspend(timeout=timeout)
            except BaseException:
                self._pools += [pool for pool in reversed(done) if not _resumed(pool)]
                if self._pools:
                    self._set_returns(by_step)
                else:
                    self._open()
                raise
            self._pools += done
            if self._pools:
                self._set_returns(returns and by_step)
            else:  # there is no pool yet
                self._open()

    def resume(self, wait: float, timeout: Optional[float], cancel: Optional[CancelToken],
               for_step: bool = False) -> None:
        """Brings back all pools that suspend() has suspended, all or none. `for_step`: only if that
        is still the next step's task."""
        deadline = _deadline(wait)
        with self._alone(deadline):
            if for_step and not self._returns:
                return
            for attempt in itertools.count():
                if self._resume_once(deadline, attempt, timeout, cancel):
                    break
            self._pools = []
            self._returns = False
            self._open()

    def _resume_once(self, deadline: float, attempt: int, timeout: Optional[float],
                     cancel: Optional[CancelToken]) -> bool:
        """Brings all pools back. False: a later one waited for long, and the earlier ones were
        suspended again. Another process may hold a part, too, and wait for this one."""
        done: List[Pool] = []
        hold, began = math.inf, time.monotonic()
        try:
            for pool in self._pools:
                if pool.closed or not pool.suspended:
                    continue
                if done:
                    hold = min(_left(deadline), _hold_time(attempt))
                done.append(pool)  # first: Ctrl-C may come when it is back already
                began = time.monotonic()
                pool.resume(wait=min(_left(deadline), hold), timeout=timeout, cancel=cancel)
            return True
        except BaseException as error:
            for pool in done:
                if _resident(pool):
                    _suspend_again(pool)
            # A refusal at once would come again.
            waited = len(done) > 1 and time.monotonic() - began >= hold / 2
            if isinstance(error, ResourceExhaustedError) and waited and _left(deadline) > 0:
                return False
            raise


def _resident(pool: Any) -> bool:
    """True if there is something to suspend: of the program's segments perhaps a part."""
    return bool(getattr(pool, "resident", not pool.suspended))


def _resumed(pool: Pool) -> bool:
    """Brings a pool back after an error. True if it is not suspended then."""
    with contextlib.suppress(Exception):
        if pool.suspended:
            pool.resume()
        return True
    return False


def _suspend_again(pool: Pool) -> None:
    # If that fails, the pool stays on the device until the next resume().
    with contextlib.suppress(Exception):
        pool.suspend()


_gate = Gate()
_offered: "weakref.WeakSet[Pool]" = weakref.WeakSet()
_settles: List[Callable[[], None]] = [_gpumem.cuda_synchronize]
# What suspend() covers beside pools: with the properties and methods of Pool that Gate uses.
others: List[Any] = []
joined: List[Callable[[Pool], None]] = []  # called with each pool that is offered


def gate() -> Gate:
    """Returns the process's gate."""
    return _gate


def offer(pool: Pool) -> Pool:
    """Returns the pool, which suspend() covers from now on if it is of kind vmm."""
    _offered.add(pool)
    for each in joined:
        each(pool)
    return pool


def offered() -> List[Pool]:
    """Returns the open pools of kind vmm that were offered."""
    return [pool for pool in list(_offered) if not pool.closed and pool.kind == "vmm"]


def before_suspending(settle: Callable[[], None]) -> None:
    """Has suspend() call a function that waits for a framework's work, or frees cached memory."""
    _settles.append(settle)


def _pools() -> List[Any]:
    """Returns all open pools of frameworks, and the other memory. Several objects may stand for one
    default pool."""
    pools = {pool.c_pool: pool for pool in [*Pool.defaults().values(), *offered()]}
    return [*pools.values(), *others]


def running() -> ContextManager[None]:
    """Returns a context for one step of the program: code that uses the GPU, allocates or frees.

        with gpumem.torch.running():
            answer = model(request).cpu()

    suspend() waits for the steps that are under way. A step that begins later blocks until
    resume(), which another thread calls. Any number of threads run steps at a time, and steps
    may be nested. A program whose only thread suspends and resumes between its steps needs
    none. The gate is one for the process, whichever framework's module is asked.
    """
    return _gate.step()


def suspended() -> bool:
    """True from the end of a suspend() to the end of the resume() that succeeds."""
    return _gate.suspended


def suspend(*, wait: float = math.inf, timeout: Optional[float] = None) -> None:
    """Moves all memory that PyTorch, CuPy and Numba have from gpumem in this process to the daemon's
    host tier, or changes nothing. That is the default pools of all devices, and the pools of kind
    vmm that the program gave to their modules. The device memory is free for others. Memory that a
    framework has past gpumem stays, and pinned memory.

    Arrays, tensors, streams and captured graphs stay as they are, but no GPU work may use them
    until resume(). None may be made either: CuPy and Numba raise FailedPreconditionError, and
    after gpumem.torch.use() a tensor has no memory. Memory that is freed does not come back.

    Waits for the steps of running(), at most `wait` seconds, then for the work of all devices.
    Needs no callback, but code outside running() must not use the GPU meanwhile. Does nothing
    if all is suspended already. timeout: as of Pool.suspend().

    After an error suspended() may be true: others have taken memory of a pool that had gone
    already. Then resume() brings it back.

    Raises DeadlineExceededError: a step did not end within `wait`. Raises
    FailedPreconditionError: called in a step of running(), or there is no host tier. Raises
    ResourceExhaustedError with its `denial`: the tier has no room. Raises UnimplementedError:
    a default pool is of another kind than vmm (GPUMEM_POOL_KIND).
    """
    _gate.suspend(wait, timeout)


def resume(*, wait: float = 0, timeout: Optional[float] = None,
           cancel: Optional[CancelToken] = None) -> None:
    """Brings back all that suspend() has suspended, all or none: the same bytes at the same
    addresses. Steps of running() go on afterwards. Does nothing if nothing is suspended. wait:
    seconds to wait for memory that others hold; Ctrl-C and `cancel` end the wait.

    Raises ResourceExhaustedError with its `denial` if a quota or the device refuses it, also
    after the wait. Raises FailedPreconditionError: called in a step of running(), or the memory
    is lost. Raises CancelledError, DeadlineExceededError (another thread suspends or resumes).
    All stays suspended then.
    """
    _gate.resume(wait, timeout, cancel)


def _after_fork_in_child() -> None:
    # Threads and pools are the parent's.
    global _gate  # pylint: disable=global-statement
    _gate = Gate()
    others.clear()
    joined.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
