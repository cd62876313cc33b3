"""Makes a policy beside the one that serves: one at a time, and the newest wish wins.

Each is made in an inference thread of its own, which will also run it, since what is captured on
a GPU belongs to the thread that captured it. A policy that is not wanted any more is given up at
its next stage, and freed before the next one is begun, so that there are never more than two in
memory. Nothing here knows ROS, torch or what a policy is.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparkrt_ros.nodes.inference_thread import FailureHandler, InferenceThread
from sparkrt_ros.runtime.build_watch import BuildWatch
from sparkrt_ros.runtime.errors import SparkRTError

Wish = TypeVar('Wish')
Product = TypeVar('Product')

# Between the beginnings of two attempts: wishes may come far faster than they can be met.
INTERVAL_S = 0.5
WAITING = 'waiting'
_POLL_S = 0.05


class GivenUp(Exception):
    """What is being made is not wanted any more."""


@dataclass(frozen=True, kw_only=True)
class Maker(Generic[Wish, Product]):
    """How policies are made. All three are called in the thread of the policy.

    make: raises SparkRTError where it cannot be done; the watch's stage ends it where it is not
        wanted any more. free: a finished one. tidy: after one that was not finished.
    """

    make: Callable[[Wish, BuildWatch], Product]
    free: Callable[[Product], object]
    tidy: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Made(Generic[Wish, Product]):
    """A policy that is ready, with the thread that made it and has to run it."""

    wish: Wish
    product: Product
    thread: InferenceThread


@dataclass(frozen=True, kw_only=True)
class Failure(Generic[Wish]):
    """Why a wish cannot be met. details: a traceback, where it was a defect."""

    wish: Wish
    reason: str
    details: str = ''


class _Turn:
    """When the last attempt began."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last_s = -interval_s

    def wait(self, unwanted: threading.Event) -> None:
        left_s = self._last_s + self._interval_s - time.monotonic()
        if unwanted.wait(max(0.0, left_s)):
            raise GivenUp
        self._last_s = time.monotonic()


class Build(Generic[Wish, Product]):
    """One attempt. after: threads that have to end before it may begin."""

    def __init__(
        self,
        wish: Wish,
        maker: Maker[Wish, Product],
        *,
        turn: _Turn,
        after: Sequence[InferenceThread],
        news: Callable[[], None],
        on_failure: FailureHandler,
    ) -> None:
        self.stage = WAITING
        self._wish = wish
        self._maker = maker
        self._turn = turn
        self._after = after
        self._news = news
        self._lock = threading.Lock()
        self._begun = False
        self._unwanted = threading.Event()
        self._product: Product | None = None
        self._failure: Failure[Wish] | None = None
        self.thread = InferenceThread(on_failure=on_failure)
        self._future = self.thread.submit(self._run)
        self._future.add_done_callback(lambda _: news())

    @property
    def wish(self) -> Wish:
        return self._wish

    @property
    def done(self) -> bool:
        return self._future.done()

    def retarget(self, wish: Wish) -> bool:
        """Meet another wish instead, if this one is not begun; whether that was so."""
        with self._lock:
            if not self._begun:
                self._wish = wish
            return not self._begun

    def result(self) -> Made[Wish, Product] | Failure[Wish] | None:
        """Of an attempt that is done: None where it was given up."""
        if self._failure is not None:
            return self._failure
        if self._product is None:
            return None
        return Made(wish=self._wish, product=self._product, thread=self.thread)

    def give_up(self) -> None:
        """End at the next stage, free everything and end the thread."""
        self._unwanted.set()
        self.thread.end(last=self._free)

    def _run(self) -> None:
        try:
            self._wait()
            product = self._maker.make(self._wish, BuildWatch(stage=self._enter))
        except GivenUp:
            pass
        except SparkRTError as error:
            self._failure = Failure(wish=self._wish, reason=str(error))
        except Exception as error:
            self._failure = Failure(
                wish=self._wish,
                reason=f'{type(error).__name__}: {error}',
                details=traceback.format_exc().rstrip(),
            )
        else:
            self._product = product
            return
        # Only now that no exception and its frames hold on to what was made so far.
        self._maker.tidy()

    def _wait(self) -> None:
        for thread in self._after:
            while not thread.join(timeout_s=_POLL_S):
                self._still_wanted()
        self._after = ()
        self._turn.wait(self._unwanted)
        with self._lock:
            self._begun = True

    def _still_wanted(self) -> None:
        if self._unwanted.is_set():
            raise GivenUp

    def _enter(self, stage: str) -> None:
        self._still_wanted()
        self.stage = stage
        self._news()

    def _free(self) -> None:
        product, self._product = self._product, None
        if product is not None:
            self._maker.free(product)


class HotSwap(Generic[Wish, Product]):
    """Meets the newest wish. All methods are called by one thread, which must not wait.

    news: called from other threads whenever :meth:`collect` or :attr:`stage` may have changed.
    on_failure: of the threads that are made, once they run a policy; see InferenceThread.
    """

    def __init__(
        self,
        maker: Maker[Wish, Product],
        *,
        news: Callable[[], None],
        on_failure: FailureHandler,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._maker = maker
        self._news = news
        self._on_failure = on_failure
        self._turn = _Turn(interval_s)
        self._build: Build[Wish, Product] | None = None
        self._ending: list[InferenceThread] = []
        self.attempts = 0

    @property
    def wish(self) -> Wish | None:
        """What is being made; None: nothing."""
        return None if self._build is None else self._build.wish

    @property
    def stage(self) -> str:
        """WAITING, or the stage of what is being made; empty: nothing is."""
        return '' if self._build is None else self._build.stage

    def want(self, wish: Wish) -> None:
        """Make this; what is being made for an older wish is given up."""
        build = self._build
        if build is not None:
            if build.wish == wish or build.retarget(wish):
                return
            self.drop()
        self.attempts += 1
        self._build = Build(
            wish,
            self._maker,
            turn=self._turn,
            after=self._still_ending(),
            news=self._news,
            on_failure=self._on_failure,
        )

    def drop(self) -> None:
        """Nothing is wanted."""
        build, self._build = self._build, None
        if build is not None:
            build.give_up()
            self._ending.append(build.thread)

    def collect(self) -> Made[Wish, Product] | Failure[Wish] | None:
        """The outcome of the newest wish, once; None as long as there is none."""
        build = self._build
        if build is None or not build.done:
            return None
        try:
            result = build.result()
        except CancelledError:
            result = None
        if isinstance(result, Made):
            self._build = None
            return result
        self.drop()
        return result

    def retire(self, thread: InferenceThread, *, last: Callable[[], object]) -> None:
        """End a thread that is not needed any more, after ``last``; nothing is made until then."""
        thread.end(last=last)
        self._ending.append(thread)

    def wait_until_freed(self, *, limit_s: float) -> bool:
        """Wait for all that was given up or retired; for a thread that may wait."""
        return _join_all(self._still_ending(), limit_s)

    def join(self, *, timeout_s: float) -> bool:
        """Give everything up and wait for its end; False if a thread still runs after that."""
        self.drop()
        return _join_all(self._still_ending(), timeout_s)

    def _still_ending(self) -> tuple[InferenceThread, ...]:
        self._ending = [thread for thread in self._ending if not thread.join(timeout_s=0.0)]
        return tuple(self._ending)


def _join_all(threads: Sequence[InferenceThread], limit_s: float) -> bool:
    until_s = time.monotonic() + limit_s
    return all(t.join(timeout_s=max(0.0, until_s - time.monotonic())) for t in threads)
