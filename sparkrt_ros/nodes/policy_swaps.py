"""Parameters that need another policy: from the set to the changeover, or back. ROS thread only.

A set takes effect as a whole. One that changes nothing about the policy does at once; any other
is held back, all of it, until the policy it asks for is ready, and put back where there can be
none. Meanwhile the old one serves. The changeover happens between two chunks: the old worker ends
what it is at, then the new one goes on in its own thread, where the old one stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from sparkrt_ros.nodes.hot_swap import WAITING, Failure, HotSwap, Made, Maker
from sparkrt_ros.nodes.inference_thread import FailureHandler, InferenceThread
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.policy_parameters import SWAP_PARAMETERS, PolicySettings
from sparkrt_ros.nodes.policy_worker import Handover
from sparkrt_ros.nodes.swap_rules import SwapReport, acceptable, target_text
from sparkrt_ros.runtime.build_watch import BuildWatch
from sparkrt_ros.runtime.errors import ConfigError

if TYPE_CHECKING:
    from sparkrt_ros.nodes.policy_serving import Serving

Values = Mapping[str, Value]
# Messages of streams that only the new policy reads have to come within this time.
CONNECT_LIMIT_S = 5.0
# What was given up is waited for no longer than this before something else is loaded.
FREE_LIMIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A policy that is ready, and the seconds its inferences took when it was tried."""

    loaded: LoadedPolicy
    rehearsed_s: tuple[float, ...] = ()


class Host(Protocol):
    """The node, as far as swaps need it."""

    @property
    def thread(self) -> InferenceThread: ...

    @property
    def serving(self) -> Serving: ...

    def hand_over(self) -> Future[Handover]:
        """Let the worker that serves end what it is at, and tell what it leaves."""

    def connect(self, loaded: LoadedPolicy, arrived: Callable[..., None]) -> Serving:
        """Subscribe to what this policy reads, which the one that serves does not."""

    def missing(self, serving: Serving) -> tuple[str, ...]:
        """Streams of which there is nothing usable."""

    def explain(self, serving: Serving) -> str:
        """Why nothing comes there."""

    def arrived(self, *message: Any) -> None:
        """What is called for each message of the policy that serves."""

    def take_over(self, thread: InferenceThread, serving: Serving, handover: Handover) -> None:
        """From now on this policy serves, in this thread."""

    def put_back(self, values: Values) -> None:
        """Set parameters to what is in effect."""

    def tell(self, text: str, *, failed: bool = False) -> None:
        """Log a line and publish the status."""


class Route:
    """A callback whose target may change."""

    def __init__(self, target: Callable[..., None]) -> None:
        self.target = target

    def __call__(self, *message: Any) -> None:
        self.target(*message)


@dataclass(kw_only=True)
class _Pending:
    """A policy on its way in. route: of its own inputs, None where it takes over the old ones."""

    made: Made[PolicySettings, Candidate]
    serving: Serving
    route: Route | None
    until_s: float
    handing: Future[Handover] | None = None


class PolicySwaps:
    """values: the parameters now. prepare: makes a policy, in its thread. tidy: see Maker.

    news: called from any thread when :meth:`advance` should be.
    """

    def __init__(
        self,
        host: Host,
        values: Values,
        *,
        prepare: Callable[[PolicySettings, BuildWatch], Candidate],
        tidy: Callable[[], object],
        news: Callable[[], None],
        on_failure: FailureHandler,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._prepare = prepare
        self._clock_s = clock_s
        self._news = news
        maker = Maker(make=self._make, free=_close, tidy=tidy)
        self._hot: HotSwap[PolicySettings, Candidate] = HotSwap(
            maker, news=news, on_failure=on_failure
        )
        self._active = False
        self._seen = values
        self._target: Values = self._seen
        self._held: dict[str, Value] = {}
        self._asked = False
        self._asked_s = 0.0
        self._pending: _Pending | None = None
        self._report = SwapReport()

    @property
    def values(self) -> Values:
        """The parameters in effect."""
        return MappingProxyType({**self._seen, **self._held})

    @property
    def handing(self) -> bool:
        """Whether the worker that serves ends what it is at, to be replaced."""
        return self._pending is not None and self._pending.handing is not None

    @property
    def coming(self) -> Serving | None:
        """The policy that is about to serve, with inputs of its own; None: none."""
        pending = self._pending
        return None if pending is None or pending.route is None else pending.serving

    @property
    def report(self) -> SwapReport:
        """How it stands."""
        stage = 'connecting' if self._pending is not None else self._hot.stage
        if not stage:
            return self._report
        text = 'waits for what was given up before it' if stage == WAITING else ''
        if self._pending is not None:
            text = 'waits for the old policy to end its inference'
            if self._pending.handing is None:
                text = f'waits for {", ".join(self._missing(self._pending))}'
        state = 'building' if stage == WAITING else stage
        target = target_text(self._target, self.values)
        return replace(self._report, state=state, text=text, target=target)

    def begin(self, values: Values) -> None:
        """A policy of these parameters serves."""
        self._seen, self._active = values, True
        self._report = replace(self._report, state='idle', text='', target='')

    def stop(self) -> None:
        """None serves any more: what is being made is given up."""
        wish = self._hot.wish or (self._pending.made.wish if self._pending else None)
        self._active = self._asked = False
        self._hot.drop()
        self._give_up_pending()
        if wish is not None:
            self._host.tell('swap given up; the next activation loads what the parameters say')
        self._held.clear()
        self._report = replace(self._report, state='idle', text='', target='')

    def changed(self, values: Values, changed: frozenset[str]) -> None:
        """Parameters were set; :attr:`values` tells what of it is in effect already."""
        before, self._seen = self.values, values
        if not self._active:
            return
        if changed & SWAP_PARAMETERS:
            for name in changed:
                self._held.setdefault(name, before[name])
            # Several sets in a row count as one: begun when this thread comes to it.
            self._asked, self._asked_s = True, self._clock_s()
            self._news()
        else:
            for name in changed:
                self._held.pop(name, None)
        # A policy that is just taking over cannot be called back any more.
        if not self.handing and self._settings(values) == self._settings(self.values):
            self._held.clear()

    def advance(self) -> None:
        """Do what can be done now."""
        if self._pending is not None and self.handing:
            self._go_on(self._pending)
        if self._asked and not self.handing:
            self._asked = False
            self._begin_wanted()
        if self._pending is not None and not self.handing:
            self._go_on(self._pending)
        outcome = self._hot.collect()
        if isinstance(outcome, Failure):
            details = f'\n{outcome.details}' if outcome.details else ''
            self._fail(outcome.reason, details)
        elif outcome is not None:
            self._connect(outcome)

    def wait_until_freed(self) -> None:
        """For an inference thread: before something else is loaded."""
        self._hot.wait_until_freed(limit_s=FREE_LIMIT_S)

    def join(self, *, timeout_s: float) -> bool:
        """End all threads but the one that serves; False if one still runs then."""
        return self._hot.join(timeout_s=timeout_s)

    # Making

    def _begin_wanted(self) -> None:
        wanted = self._settings(self._seen)
        self._give_up_pending()
        if wanted == self._host.serving.loaded.settings.to_load:
            self._hot.drop()
            return
        self._target = self._seen
        self._report = replace(self._report, state='idle', text='', target='')
        self._hot.want(wanted)

    def _make(self, wanted: PolicySettings, watch: BuildWatch) -> Candidate:
        """In the thread of the new policy."""
        serving = self._host.serving.loaded
        accepts = acceptable(wanted, serving.settings, serving.receipt)
        return self._prepare(wanted, replace(watch, accepts=accepts))

    def _fail(self, reason: str, details: str = '') -> None:
        target = target_text(self._target, self.values)
        self._report = replace(
            self._report,
            state='failed',
            text=reason,
            target=target,
            failed=self._report.failed + 1,
        )
        self._host.tell(
            f'swap to {target} failed, the old policy serves on: {reason}{details}', failed=True
        )
        back, self._held = dict(self._held), {}
        self._seen = MappingProxyType({**self._seen, **back})
        self._host.put_back(back)

    # Changing over

    def _connect(self, made: Made[PolicySettings, Candidate]) -> None:
        try:
            loaded = made.product.loaded.with_settings(PolicySettings.of(self._after_swap()))
        except ConfigError as error:  # of what was set meanwhile
            self._hot.retire(made.thread, last=made.product.loaded.policy.close)
            self._fail(str(error))
            return
        route, serving = None, self._host.serving
        if serving.reads_as(loaded):
            serving = serving.with_policy(loaded)
        else:
            route = Route(lambda *_: self._news())
            serving = self._host.connect(loaded, route)
        self._pending = _Pending(
            made=made, serving=serving, route=route, until_s=self._clock_s() + CONNECT_LIMIT_S
        )
        self._go_on(self._pending)

    def _go_on(self, pending: _Pending) -> None:
        if pending.handing is not None:
            if pending.handing.done():
                self._change_over(pending, pending.handing.result())
            return
        missing = ', '.join(self._missing(pending))
        if not missing:
            pending.handing = self._host.hand_over()
            pending.handing.add_done_callback(lambda _: self._news())
        elif self._clock_s() > pending.until_s:
            why = self._host.explain(pending.serving)
            self._give_up_pending()
            reason = f'no usable message of {missing} within {CONNECT_LIMIT_S:g} s'
            self._fail(f'{reason}: {why}' if why else reason)

    def _missing(self, pending: _Pending) -> tuple[str, ...]:
        return () if pending.route is None else self._host.missing(pending.serving)

    def _change_over(self, pending: _Pending, handover: Handover) -> None:
        old, old_thread = self._host.serving, self._host.thread
        made, target = pending.made, target_text(self._target, self.values)
        after = self._after_swap()
        self._pending = None
        self._held = {name: after[name] for name in self._held if after[name] != self._seen[name]}
        took_s = self._clock_s() - self._asked_s
        self._report = SwapReport(
            done=self._report.done + 1, failed=self._report.failed, last_s=took_s
        )
        if pending.route is not None:
            pending.route.target = self._host.arrived
        handover = replace(handover, latency_s=made.product.rehearsed_s)
        self._host.take_over(made.thread, pending.serving, handover)
        self._hot.retire(old_thread, last=old.loaded.policy.close)
        self._host.tell(f'swapped to {target} after {took_s:.1f} s')

    def _give_up_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if pending.route is not None:
            pending.serving.inputs.destroy()
        self._hot.retire(pending.made.thread, last=pending.made.product.loaded.policy.close)

    def _after_swap(self) -> Values:
        """What will be in effect once the policy of ``_target`` serves."""
        held = {name: self._target[name] for name in self._held}
        return MappingProxyType({**self._seen, **held})

    @staticmethod
    def _settings(values: Values) -> PolicySettings:
        return PolicySettings.of(values).to_load


def _close(candidate: Candidate) -> None:
    candidate.loaded.policy.close()
