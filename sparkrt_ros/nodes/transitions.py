"""The lifecycle node both processes are built on.

rclpy swallows what a transition callback raises and returns ERROR without a word, so every
transition here is wrapped: it logs one line when it succeeds and the reason when it does not.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from sparkrt_ros.nodes.cpus import Cpus
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.parameters import Check, ParameterSet, ParameterSpec
from sparkrt_ros.nodes.shutdown import Stopped, StopToken
from sparkrt_ros.runtime.errors import SparkRTError

N = TypeVar('N', bound='ManagedNode')
Transition = Callable[[N, LifecycleState], TransitionCallbackReturn]


def logged_transition(method: Transition[N]) -> Transition[N]:
    """Log the outcome of a transition callback; an exception never leaves it.

    A deliberate error is logged as its own sentence and returns FAILURE (the node stays where it
    was); anything else is logged with its traceback and returns ERROR.
    """

    @wraps(method)
    def run(self: N, state: LifecycleState) -> TransitionCallbackReturn:
        name = method.__name__.removeprefix('on_')
        try:
            result = method(self, state)
        except Stopped:
            self.get_logger().info(f'{name} given up: the process ends')
            return TransitionCallbackReturn.FAILURE
        except SparkRTError as error:
            self.last_error = str(error)
            self.get_logger().error(f'{name} failed: {error}')
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            self.last_error = f'{type(error).__name__}: {error}'
            self.get_logger().error(f'{name} from {state.label}:\n{traceback.format_exc()}')
            return TransitionCallbackReturn.ERROR
        if result == TransitionCallbackReturn.SUCCESS:
            if name in ('configure', 'activate'):
                self.last_error = ''
            self.get_logger().info(f'{name} done')
        return result

    return run


class ManagedNode(LifecycleNode):
    """A lifecycle node whose subclasses write plain methods that raise.

    Override ``configure``, ``activate``, ``deactivate`` and ``cleanup``; ``deactivate`` and
    ``cleanup`` must be safe to call at any time, also after a ``configure`` that failed halfway.
    ``release(timeout_s)`` ends threads; it is called once, when the process ends.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[ParameterSpec],
        token: StopToken,
        *,
        check: Check | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self.token = token
        self.last_error = ''
        self.phase = 'unconfigured'
        self._cpus = Cpus()
        self.parameters = ParameterSet(self, specs, check=self._checked(check))
        if 'cpus' in self.parameters.values:
            self._cpus.use(str(self.parameters['cpus']))
            self.parameters.on_change(self._move)

    def _checked(self, check: Check | None) -> Check:
        def check_all(values: Mapping[str, Value]) -> None:
            self._cpus.check(str(values.get('cpus', '')))
            if check is not None:
                check(values)

        return check_all

    def _move(self, values: Mapping[str, Value], changed: frozenset[str]) -> None:
        if 'cpus' in changed:
            self._cpus.use(str(values['cpus']))

    def configure(self) -> None:
        """Get everything ready. Raises SparkRTError with the reason if that is impossible."""

    def activate(self) -> None:
        """Start working."""

    def deactivate(self) -> None:
        """Stop; after this returns nothing is sent."""

    def cleanup(self) -> None:
        """Free everything ``configure`` made."""

    def release(self, *, timeout_s: float) -> bool:
        """End the threads of the node; False if one still runs after ``timeout_s``."""
        return True

    def autostart(self) -> None:
        """Configure and activate if the parameter ``autostart`` says so."""
        if not self.parameters['autostart'] or self.token.is_set():
            return
        configured = self.trigger_configure() == TransitionCallbackReturn.SUCCESS
        if self.token.is_set():
            return
        if configured:
            self.trigger_activate()
        else:
            self.get_logger().error('not started: configure failed; set right what it names')

    def fail(self, reason: str, *, exit_code: int) -> None:
        """End the process with a non-zero code; for faults that a restart has to cure."""
        self.last_error = reason
        self.get_logger().fatal(reason)
        self.token.set(exit_code=exit_code)

    def take_down(self, *, timeout_s: float) -> bool:
        """Bring the node to rest for the end of the process; errors are logged, never raised.

        False if a thread of it still runs.
        """
        ended = False
        try:
            self.deactivate()
            ended = self.release(timeout_s=timeout_s)
            self.cleanup()
        except Exception:
            self.get_logger().error(f'while ending:\n{traceback.format_exc()}')
        return ended

    @logged_transition
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            self.configure()
        except Exception:
            self.cleanup()
            raise
        self._enter('inactive')
        return super().on_configure(state)

    @logged_transition
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        # The publishers first: what activate() starts may publish at once.
        result = super().on_activate(state)
        try:
            self.activate()
        except Exception:
            self.deactivate()
            super().on_deactivate(state)
            raise
        self._enter('active')
        return result

    @logged_transition
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.deactivate()
        self._enter('inactive')
        return super().on_deactivate(state)

    @logged_transition
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.cleanup()
        self._enter('unconfigured')
        return super().on_cleanup(state)

    @logged_transition
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.deactivate()
        self.cleanup()
        self._enter('finalized')
        return super().on_shutdown(state)

    @logged_transition
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After a defect in a transition: free everything and be ready to configure again."""
        self.deactivate()
        self.cleanup()
        self._enter('unconfigured')
        return super().on_error(state)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.parameters.set_phase(configured=phase in ('inactive', 'active'))
