"""Real ROS 2 in tests: processes, a peer to talk to them, and waiting on events with a deadline.

Everything waits for what it needs: an endpoint that matched, a message that fits, a line in a
log. Nothing sleeps for a guessed time.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import rclpy
import yaml
from ament_index_python.packages import get_package_prefix
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters, SetParameters, SetParametersAtomically
from rclpy.context import Context
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.exceptions import InvalidHandle
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 60.0
# What launch grants before it sends the next, harder signal is 5 s; a busy machine may need more.
EXIT_LIMIT_S = 15.0
# Killed processes leave shared memory, and whoever comes across it says so.
MIDDLEWARE_NEWS = 'RTPS_TRANSPORT_SHM'
SETTLE_ATTEMPTS = 20
# Up to here no DDS port falls into the range Linux hands out to anybody.
DOMAINS = range(30, 100)

_TRANSITIONS = {
    'configure': Transition.TRANSITION_CONFIGURE,
    'activate': Transition.TRANSITION_ACTIVATE,
    'deactivate': Transition.TRANSITION_DEACTIVATE,
    'cleanup': Transition.TRANSITION_CLEANUP,
}
_STATES = {
    State.PRIMARY_STATE_UNCONFIGURED: 'unconfigured',
    State.PRIMARY_STATE_INACTIVE: 'inactive',
    State.PRIMARY_STATE_ACTIVE: 'active',
    State.PRIMARY_STATE_FINALIZED: 'finalized',
}


def claim_domain() -> tuple[int, IO[str]]:
    """A domain id no other test process of this machine uses, for as long as the file is open."""
    for domain in DOMAINS:
        path = Path(tempfile.gettempdir()) / f'sparkrt_test_domain_{domain}.lock'
        handle = path.open('w')
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            continue
        return domain, handle
    raise RuntimeError('all ROS domains for tests are in use')


def ros_environment(domain: int) -> dict[str, str]:
    """The environment of every process of a test: private, local, and the source tree first."""
    paths = [str(ROOT), *os.environ.get('PYTHONPATH', '').split(os.pathsep)]
    return {
        **os.environ,
        'ROS_DOMAIN_ID': str(domain),
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        'FASTDDS_DEFAULT_PROFILES_FILE': str(ROOT / 'config' / 'fastdds.xml'),
        'PYTHONPATH': os.pathsep.join(path for path in paths if path),
        'PYTHONUNBUFFERED': '1',
        'RCUTILS_LOGGING_USE_STDOUT': '1',
        'OMP_NUM_THREADS': '1',
    }


def executable(name: str) -> str:
    """Path of an installed executable of this package."""
    return str(Path(get_package_prefix('sparkrt')) / 'lib' / 'sparkrt' / name)


def parameter_file(folder: Path, node: str, parameters: Mapping[str, Any]) -> Path:
    """Write a parameter file for one node."""
    path = folder / f'{node}_{time.monotonic_ns()}.yaml'
    path.write_text(yaml.safe_dump({f'/**/{node}': {'ros__parameters': dict(parameters)}}))
    return path


# Lines of a process that are shown where a test fails.
TOLD = 40


class NodeProcess:
    """One child process; its output is collected line by line."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        with self._changed:
            return '\n'.join(self.lines)

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.log))

    def wait_for_log(self, pattern: str, *, timeout_s: float = LIMIT_S) -> str:
        """The first line that matches; an AssertionError with the whole log if none comes."""
        expression = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._changed:
            while True:
                for line in self.lines[seen:]:
                    if expression.search(line):
                        return line
                seen = len(self.lines)
                left = deadline - time.monotonic()
                ended = self._process.poll() is not None and not self._reader.is_alive()
                if left <= 0.0 or ended:
                    text = '\n'.join(self.lines)
                    raise AssertionError(f'no line matches {pattern!r} in:\n{text}')
                self._changed.wait(min(left, 1.0))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, *, timeout_s: float = LIMIT_S) -> int:
        """The exit code. An AssertionError with the log if the process goes on."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f'still running after {timeout_s} s:\n{self.log}') from None
        self._reader.join(LIMIT_S)
        return code

    def stop(self) -> None:
        """End the process in order, by force if it does not; for the end of a test.

        pytest shows what is printed here where that test fails.
        """
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(LIMIT_S)
        print(f'--- the end of what {self.pid} printed', *self.lines[-TOLD:], sep='\n')  # noqa: T201

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if MIDDLEWARE_NEWS in line:
                continue
            with self._changed:
                self.lines.append(line.rstrip('\n'))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def assert_ends_cleanly(process: NodeProcess, *numbers: int) -> None:
    """At these signals: in time, with code 0, and without a word of an error."""
    for number in numbers:
        process.signal(number)
    code = process.wait(timeout_s=EXIT_LIMIT_S)
    assert code == 0, process.log
    assert 'Traceback' not in process.log
    assert 'rror' not in process.log
    assert 'exception' not in process.log.lower()


class Inbox:
    """Messages of one topic in order of arrival, with the steady time [s] of each."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.times_s: list[float] = []
        self.publishers = 0
        self.matched_s: float | None = None
        self._changed = threading.Condition()

    def __len__(self) -> int:
        with self._changed:
            return len(self.messages)

    @property
    def last(self) -> Any:
        with self._changed:
            return self.messages[-1]

    def clear(self) -> None:
        with self._changed:
            self.messages.clear()
            self.times_s.clear()

    def wait_for(
        self,
        accept: Callable[[Any], bool] = lambda _: True,
        *,
        count: int = 1,
        timeout_s: float = LIMIT_S,
        what: str = 'message',
    ) -> Any:
        """The ``count``-th message from now on that ``accept`` likes."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            seen = len(self.messages)
            while True:
                for message in self.messages[seen:]:
                    count -= accept(message)
                    if count == 0:
                        return message
                seen = len(self.messages)
                left = deadline - time.monotonic()
                if left <= 0.0 or not self._changed.wait(left):
                    last = self.messages[-1] if self.messages else 'nothing at all'
                    raise AssertionError(f'no {what} in {timeout_s} s; last was {last}')

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float = LIMIT_S) -> None:
        """Wait until ``condition``, looked at after each message or match, holds."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise AssertionError(f'condition not met in {timeout_s} s')

    def put(self, message: Any) -> None:
        with self._changed:
            self.messages.append(message)
            self.times_s.append(time.monotonic())
            self._changed.notify_all()

    def match(self, count: int) -> None:
        with self._changed:
            self.publishers = count
            self.matched_s = self.matched_s or time.monotonic()
            self._changed.notify_all()


class Outlet:
    """A publisher that knows when somebody listens."""

    def __init__(self, node: Node, kind: type, topic: str, profile: QoSProfile) -> None:
        self._changed = threading.Condition()
        self.subscribers = 0
        self.publisher = node.create_publisher(
            kind, topic, profile, event_callbacks=PublisherEventCallbacks(matched=self._match)
        )

    def publish(self, message: Any) -> None:
        self.publisher.publish(message)

    def wait_matched(self, count: int = 1, *, timeout_s: float = LIMIT_S) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.subscribers >= count, timeout_s):
                topic = self.publisher.topic_name
                raise AssertionError(f'{self.subscribers} of {count} subscribers on {topic}')

    def _match(self, event: Any) -> None:
        with self._changed:
            self.subscribers = event.current_count
            self._changed.notify_all()


class Peer:
    """A node of the test itself, spinning in a thread of its own context."""

    def __init__(self, *, domain: int, name: str = 'test_peer') -> None:
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = Node(name, context=self.context, use_global_arguments=False)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._ending = rclpy.task.Future()
        self._clients: dict[str, Any] = {}
        self._made: list[Callable[[], Any]] = []
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Take back everything that was made since the last time, so that no test sees it."""
        for destroy in self._made:
            destroy()
        self._made.clear()
        self._clients.clear()

    def forget_clients(self) -> None:
        """Make new ones for a process that takes the place of another, and settle them."""
        for client in self._clients.values():
            self.node.destroy_client(client)
        self._clients.clear()

    def close(self) -> None:
        self.release()
        self._ending.set_result(None)
        self._thread.join(LIMIT_S)
        self._executor.shutdown(timeout_sec=0.0)
        self.node.destroy_node()
        self.context.try_shutdown()

    def _spin(self) -> None:
        while not self._ending.done():
            # A test may destroy what this thread is just about to wait for.
            with suppress(InvalidHandle):
                self._executor.spin_until_future_complete(self._ending)

    @property
    def now_ns(self) -> int:
        return self.node.get_clock().now().nanoseconds

    def subscribe(
        self, kind: type, topic: str, profile: QoSProfile, *, inbox: Inbox | None = None
    ) -> Inbox:
        """``inbox``: takes the messages in place of a plain one."""
        inbox = Inbox() if inbox is None else inbox

        def matched(event: Any) -> None:
            inbox.match(event.current_count)

        events = SubscriptionEventCallbacks(matched=matched)
        subscription = self.node.create_subscription(
            kind, topic, inbox.put, profile, event_callbacks=events
        )
        self._made.append(lambda: self.node.destroy_subscription(subscription))
        return inbox

    def publisher(self, kind: type, topic: str, profile: QoSProfile) -> Outlet:
        outlet = Outlet(self.node, kind, topic, profile)
        self._made.append(lambda: self.node.destroy_publisher(outlet.publisher))
        return outlet

    def every(self, period_s: float, act: Callable[[], None]) -> Any:
        """Call ``act`` in the peer's thread again and again; the timer has ``cancel``."""
        timer = self.node.create_timer(period_s, act)
        self._made.insert(0, lambda: self.node.destroy_timer(timer))
        return timer

    def call(
        self, kind: type, service: str, request: Any = None, *, timeout_s: float = LIMIT_S
    ) -> Any:
        """Call a service and wait for its response."""
        client = self._clients.get(service)
        if client is None:
            client = self._clients[service] = self.node.create_client(kind, service)
            self._made.append(lambda: self.node.destroy_client(client))
            self._settle(client, service)
        return self._ask(client, kind.Request() if request is None else request, timeout_s)

    def _settle(self, client: Any, service: str) -> None:
        """Wait until the server knows both halves of ``client``.

        A server that was discovered a moment ago may not yet have discovered the half that takes
        responses; a response then goes nowhere. What is made later is discovered later, so once a
        second client gets an answer, the first would.
        """
        if not client.wait_for_service(LIMIT_S):
            raise AssertionError(f'no service {service}')
        second = self.node.create_client(GetParameters, f'{Path(service).parent}/get_parameters')
        try:
            for _ in range(SETTLE_ATTEMPTS):
                with suppress(AssertionError):
                    self._ask(second, GetParameters.Request(), LIMIT_S / SETTLE_ATTEMPTS)
                    return
            raise AssertionError(f'{service}: its node answers nothing')
        finally:
            self.node.destroy_client(second)

    def _ask(self, client: Any, request: Any, timeout_s: float) -> Any:
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        if not done.wait(timeout_s):
            raise AssertionError(f'no response from {client.srv_name} in {timeout_s} s')
        return future.result()

    def change_state(self, node: str, transition: str, *, timeout_s: float = 60.0) -> bool:
        request = ChangeState.Request()
        request.transition.id = _TRANSITIONS[transition]
        service = f'{node}/change_state'
        return bool(self.call(ChangeState, service, request, timeout_s=timeout_s).success)

    def state(self, node: str, *, timeout_s: float = LIMIT_S) -> str:
        response = self.call(GetState, f'{node}/get_state', timeout_s=timeout_s)
        return _STATES[response.current_state.id]

    def set_parameters(self, node: str, **values: Any) -> list[Any]:
        """One result per parameter; ``__`` stands for the dot in a name."""
        request = SetParameters.Request(parameters=_parameters(values))
        return list(self.call(SetParameters, f'{node}/set_parameters', request).results)

    def set_parameters_atomically(self, node: str, **values: Any) -> Any:
        request = SetParametersAtomically.Request(parameters=_parameters(values))
        service = f'{node}/set_parameters_atomically'
        return self.call(SetParametersAtomically, service, request).result

    def get_parameter(self, node: str, name: str) -> Any:
        request = GetParameters.Request(names=[name])
        value = self.call(GetParameters, f'{node}/get_parameters', request).values[0]
        return rclpy.parameter.parameter_value_to_python(value)


def _parameters(values: Mapping[str, Any]) -> list[Any]:
    return [
        Parameter(name.replace('__', '.'), value=value).to_parameter_msg()
        for name, value in values.items()
    ]


def python_script(path: Path) -> list[str]:
    """The command of a script of the tests."""
    return [sys.executable, str(path)]
