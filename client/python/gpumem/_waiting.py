"""Calls that wait: so that Ctrl-C ends them, and that asyncio has them.

A signal's handler raises between any two steps of the main thread. What threading and
weakref.WeakSet do there is written in Python, and breaks: locks stay held for ever, or are released
and not held (RuntimeError instead of KeyboardInterrupt), and what is raised in a weak reference's
callback is lost. What _thread and set do is done as a whole or not at all.
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

# Of what waits now in a thread of this module, which that thread keeps here. At the interpreter's
# end nobody wants it any more.
_tokens: Set["Token"] = set()
_ends = False
# How late a Ctrl-C may be that comes in the very moment when a wait begins.
_LOOK_S = 0.25


class Token:
    """Ends waits from another thread. Any number of calls may have it."""

    def __init__(self) -> None:
        self._handle = _gpumem.token_new()
        self._after: Set["weakref.ref[Token]"] = set()  # what is cancelled with it

    @property
    def handle(self) -> _gpumem.Handle:
        """For the other parts of the package."""
        return self._handle

    def cancel(self) -> None:
        """The calls that have it, and those to come, end with CancelledError."""
        _gpumem.token_cancel(self._handle)
        for reference in list(self._after):
            token = reference()
            if token is not None:
                token.cancel()

    def lead(self, other: "Token") -> None:
        """As long as both exist, `other` is cancelled where this is."""
        self._after.add(weakref.ref(other, self._after.discard))
        if self.cancelled:  # before it knew of the other
            other.cancel()

    @property
    def cancelled(self) -> bool:
        """Whether it was."""
        return _gpumem.token_is_cancelled(self._handle)


CancelToken = Token


@atexit.register
def _cancel_all() -> None:
    global _ends  # pylint: disable=global-statement
    _ends = True
    for token in list(_tokens):
        token.cancel()


# In a child after fork() what waits is the parent's.
os.register_at_fork(after_in_child=_tokens.clear)


class _Call:
    """Runs `work(token)` in a thread of its own: a wait may be long, and threads of an executor
    are few."""

    def __init__(self, work: Callable[[Token], Any], token: Token,
                 done: Callable[[], None] = lambda: None) -> None:
        self._work, self._token, self._done = work, token, done
        self._right_to_begin = [True]  # taken by who pops it: the thread, or who does not want it
        self._ended = False
        self._running = _thread.allocate_lock()
        self._running.acquire()  # pylint: disable=consider-using-with
        self._unwanted = False
        self._result: List[Any] = []
        self._error: Optional[BaseException] = None

    def start(self) -> None:
        """Once."""
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
        """For its end. May be interrupted, and called again."""
        # A signal that comes between Python's last look for one and the system call does not end
        # that call: so Python looks again.
        while not self._ended:
            self._running.acquire(timeout=_LOOK_S)  # pylint: disable=consider-using-with

    def abandon(self) -> bool:
        """Does not wait: what comes of it is given back then. Whether it had begun."""
        self._unwanted = True
        begun = not self._begin()
        self._result.clear()
        self._error = None
        return begun

    def drop(self) -> None:
        """The same, and waits for its end, where it has begun: what was granted in the moment of a
        cancel() is given back by then."""
        if self.abandon():
            self.wait()

    def answer(self) -> Any:
        """What came of it, once. The call keeps nothing."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error
        return self._result.pop()


def call(work: Callable[[Optional[Token]], T], token: Optional[Token],
         abandon: bool = False) -> T:
    """work(token), so that a signal's handler (Ctrl-C) runs at once and can end it."""
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
    """The same for a wait that nobody can end: Ctrl-C leaves it to itself, and what comes of it is
    given back at once."""
    return call(lambda token: work(), None, abandon=True)


async def call_async(work: Callable[[Token], T]) -> T:
    """The same for asyncio. When the task is cancelled the wait ends, and nothing is held."""
    loop = asyncio.get_running_loop()
    token = Token()
    done = asyncio.Event()

    def tell() -> None:
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    running = _Call(work, token, tell)
    try:
        running.start()
        await done.wait()
    except asyncio.CancelledError:
        token.cancel()
        # The thread ends as soon as the daemon has heard of it. It is waited for, so that nothing
        # is held when the task has ended; a second cancel() does not wait.
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
