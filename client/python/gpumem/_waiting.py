# SPDX-License-Identifier: Apache-2.0
"""Calls that wait, which Ctrl-C can end and asyncio can await.

A signal's handler raises between any two steps of the main thread. The parts of threading and
weakref.WeakSet that are written in Python break there:
- Locks stay held for ever, or are released without being held (RuntimeError instead of
  KeyboardInterrupt).
- An exception raised in a weak reference's callback is lost.
The operations of _thread and set are atomic.
"""
from __future__ import annotations

import _thread
import asyncio
import atexit
import os
import threading
import weakref
from typing import Any, Callable, List, Optional, Set, TypeVar

from . import _gpumem
from .errors import CancelledError

T = TypeVar("T")

# Tokens of the waits in threads of this module, which keep them here. They are cancelled at the
# interpreter's end.
_tokens: Set["Token"] = set()
_ends = False
# The longest delay of a Ctrl-C that comes at the moment when a wait begins.
_LOOK_S = 0.25


class Token:
    """Cancels waits from another thread. Any number of calls may share it."""

    def __init__(self) -> None:
        self._handle = _gpumem.token_new()
        self._after: Set["weakref.ref[Token]"] = set()  # tokens that its cancellation cancels, too

    @property
    def handle(self) -> _gpumem.Handle:
        """For other parts of the package."""
        return self._handle

    def cancel(self) -> None:
        """Ends the calls that have it, and later ones, with CancelledError."""
        _gpumem.token_cancel(self._handle)
        for reference in list(self._after):
            token = reference()
            if token is not None:
                token.cancel()

    def lead(self, other: "Token") -> None:
        """Cancels `other` when this is cancelled, as long as both exist."""
        self._after.add(weakref.ref(other, self._after.discard))
        if self.cancelled:  # before it knew of the other
            other.cancel()

    @property
    def cancelled(self) -> bool:
        """True if cancel() was called."""
        return _gpumem.token_is_cancelled(self._handle)


CancelToken = Token


@atexit.register
def _cancel_all() -> None:
    global _ends  # pylint: disable=global-statement
    _ends = True
    for token in list(_tokens):
        token.cancel()


# After fork(), the waits are the parent's.
os.register_at_fork(after_in_child=_tokens.clear)


class _Call:
    """Runs `work(token)` in a separate thread: a wait may be long, and an executor has few threads.
    """

    def __init__(self, work: Callable[[Token], Any], token: Token,
                 done: Callable[[], None] = lambda: None) -> None:
        self._work, self._token, self._done = work, token, done
        self._right_to_begin = [True]  # popped by the thread, or by abandon()
        self._ended = False
        self._running = _thread.allocate_lock()
        self._running.acquire()  # pylint: disable=consider-using-with
        self._unwanted = False
        self._result: List[Any] = []
        self._error: Optional[BaseException] = None

    def start(self) -> None:
        """Starts the thread. Call it once."""
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        if not self._begin():
            return
        try:
            _tokens.add(self._token)
            if _ends:
                self._token.cancel()
            self._result.append(self._work(self._token))
        except BaseException as error:  # pylint: disable=broad-except
            self._error = error
        _tokens.discard(self._token)
        if self._unwanted:
            self._result.clear()
            self._error = None
        self._ended = True
        self._running.release()
        self._done()

    def _begin(self) -> bool:
        try:
            return self._right_to_begin.pop()
        except IndexError:
            return False

    def wait(self) -> None:
        """Blocks until the call ends. May be interrupted, and called again."""
        # A signal that comes between Python's last check and the system call does not end that
        # call. So the wait has a timeout, after which Python checks again.
        while not self._ended:
            self._running.acquire(timeout=_LOOK_S)  # pylint: disable=consider-using-with

    def abandon(self) -> bool:
        """Discards the result as soon as there is one; does not block. True if the call had begun.
        """
        self._unwanted = True
        begun = not self._begin()
        self._result.clear()
        self._error = None
        return begun

    def drop(self) -> None:
        """Like abandon(), but blocks until the call ends, if it had begun. What was granted at the
        moment of a cancel() is then given back."""
        if self.abandon():
            self.wait()

    def answer(self) -> Any:
        """Returns or raises the result, once. The call keeps nothing."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error
        return self._result.pop()


def call(work: Callable[[Optional[Token]], T], token: Optional[Token],
         abandon: bool = False) -> T:
    """Returns work(token). A signal's handler (Ctrl-C) runs at once and can end the wait."""
    if _thread.get_ident() != threading.main_thread().ident:
        return work(token)
    own = Token()
    running = _Call(work, own)
    try:
        if token is not None:
            token.lead(own)
        running.start()
        running.wait()
        result: T = running.answer()
        return result
    except BaseException:
        own.cancel()
        if abandon:
            running.abandon()
        else:
            running.drop()
        raise


def call_without_token(work: Callable[[], T]) -> T:
    """Like call(), for a wait that cannot be cancelled. Ctrl-C leaves it running, and its result is
    given back at once."""
    return call(lambda token: work(), None, abandon=True)


async def call_async(work: Callable[[Token], T]) -> T:
    """Like call(), for asyncio. Cancelling the task ends the wait, and nothing is held."""
    loop = asyncio.get_running_loop()
    token = Token()
    done = asyncio.Event()

    def tell() -> None:
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:
            pass  # the loop is closed: no task waits

    running = _Call(work, token, tell)
    try:
        running.start()
        await done.wait()
    except asyncio.CancelledError:
        token.cancel()
        # The thread ends as soon as the daemon has processed the cancellation. Waiting for that
        # ensures that nothing is held when the task ends. A second cancel() does not wait.
        if running.abandon():
            await done.wait()
        raise
    except BaseException:  # Ctrl-C, or the coroutine is closed: there is no waiting any more
        token.cancel()
        running.abandon()
        raise
    try:
        result: T = running.answer()
    except CancelledError as error:
        raise asyncio.CancelledError(str(error)) from error
    return result
