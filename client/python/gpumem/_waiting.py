"""Calls that wait: so that Ctrl-C ends them, and that asyncio has them."""
from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from typing import Any, Callable, ContextManager, Iterator, List, Optional, Set, TypeVar

from . import _gpumem
from .errors import CancelledError

T = TypeVar("T")

# What waits now in a thread of this module. At the interpreter's end nobody wants it any more.
_tokens: "weakref.WeakSet[Token]" = weakref.WeakSet()


class Token:
    """Ends waits from another thread. Any number of calls may have it."""

    def __init__(self) -> None:
        self._handle = _gpumem.token_new()
        self._after: Set["Token"] = set()  # what is cancelled with it

    @property
    def handle(self) -> _gpumem.Handle:
        """For the other parts of the package."""
        return self._handle

    def cancel(self) -> None:
        """The calls that have it, and those to come, end with CancelledError."""
        _gpumem.token_cancel(self._handle)
        for token in list(self._after):
            token.cancel()

    @contextlib.contextmanager
    def followed_by(self, other: "Token") -> Iterator[None]:
        """Meanwhile `other` is cancelled where this is."""
        self._after.add(other)
        try:
            if self.cancelled:  # before it knew of the other
                other.cancel()
            yield
        finally:
            self._after.discard(other)

    @property
    def cancelled(self) -> bool:
        """Whether it was."""
        return _gpumem.token_is_cancelled(self._handle)


CancelToken = Token


@atexit.register
def _cancel_all() -> None:
    for token in list(_tokens):
        token.cancel()


# In a child after fork() what waits is the parent's.
os.register_at_fork(after_in_child=_tokens.clear)


class _Call(threading.Thread):
    """Runs `work(token)` in a thread of its own: a wait may be long, and threads of an executor
    are few."""

    def __init__(self, work: Callable[[Token], Any], token: Token,
                 done: Callable[[], None]) -> None:
        super().__init__(name="gpumem-wait", daemon=True)
        self._work, self._token, self._done = work, token, done
        self.result: List[Any] = []
        self._unwanted = False
        self.error: Optional[BaseException] = None
        _tokens.add(token)

    def run(self) -> None:
        try:
            self.result.append(self._work(self._token))
        except BaseException as error:  # pylint: disable=broad-except
            self.error = error
        if self._unwanted:
            self.result.clear()
        self._done()

    def abandon(self) -> None:
        """Does not wait: what comes of it is given back then."""
        self._unwanted = True
        self.result.clear()

    def drop(self) -> None:
        """Waits for its end, where it has begun. What was granted in the moment of a cancel() is
        given back."""
        if self.is_alive():
            self.join()
        self.result.clear()
        self.error = None

    def answer(self) -> Any:
        """What came of it. The thread keeps nothing."""
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error
        return self.result.pop()


def call(work: Callable[[Optional[Token]], T], token: Optional[Token],
         abandon: bool = False) -> T:
    """work(token), so that a signal's handler (Ctrl-C) runs at once and can end it."""
    if threading.current_thread() is not threading.main_thread():
        return work(token)
    own = Token()
    done = threading.Event()
    running = _Call(work, own, done.set)
    follows: ContextManager[None] = (
        contextlib.nullcontext() if token is None else token.followed_by(own))
    try:
        with follows:
            # In here, since a signal may come while start() waits for the thread to run.
            running.start()
            done.wait()
            running.join()
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
    running.start()
    try:
        await done.wait()
    except asyncio.CancelledError:
        token.cancel()
        # The thread ends as soon as the daemon has heard of it. It is waited for, so that nothing
        # is held when the task has ended; a second cancel() does not wait.
        await done.wait()
        running.drop()
        raise
    running.join()
    try:
        result: T = running.answer()
    except CancelledError as error:
        raise asyncio.CancelledError(str(error)) from error
    return result
