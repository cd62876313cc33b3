"""Time as the recording says it was; nothing here reads a clock."""

from __future__ import annotations

from collections.abc import Callable

from sparkrt_ros.convert.time import NS_PER_S, seconds_to_ns, stamp_to_ns
from sparkrt_ros.nodes.policy_worker import WorkerClocks
from sparkrt_ros.replay.bag import BagMessage
from sparkrt_ros.runtime.errors import ConfigError

LOG, HEADER, CLOCK = 'log', 'header', 'clock'
TIMES = (LOG, HEADER, CLOCK)
CLOCK_TYPE = 'rosgraph_msgs/msg/Clock'


class VirtualClock:
    """Set by whoever plays the bag; may be set back, which ``steady_ns`` does not follow.

    ahead_ns: how far an inference that is being made has got by itself.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.steady_ns = 0
        self.ahead_ns = 0

    def set(self, now_ns: int) -> None:
        """Move to ``now_ns``."""
        self.steady_ns += max(0, now_ns - self.now_ns) if self.now_ns else 0
        self.now_ns = now_ns

    def steady_s(self) -> float:
        """Seconds since the start, never going back."""
        return (self.steady_ns + self.ahead_ns) / NS_PER_S

    def worker_clocks(self) -> WorkerClocks:
        """The clocks of a PolicyWorker that lives in this time."""
        return WorkerClocks(
            now_ns=lambda: self.now_ns, pacing_s=self.steady_s, look_s=self.steady_s
        )


class MessageTimes:
    """What time it is when a message arrives, in the time that the user chose.

    ``log``: when it was recorded. ``header``: its own stamp, where it has one. ``clock``: what
    ``/clock`` said last, as under use_sim_time; None before it said anything.
    """

    def __init__(self, choice: str, *, clock_topic: str = '/clock') -> None:
        if choice not in TIMES:
            raise ConfigError('time', found=repr(choice), expected=f'one of {", ".join(TIMES)}')
        self.clock_topic = clock_topic
        self.order = HEADER if choice == HEADER else LOG
        self.needs_clock = choice == CLOCK
        self._simulated_ns: int | None = None
        choices: dict[str, Callable[[BagMessage], int | None]] = {
            LOG: lambda message: message.log_ns,
            HEADER: lambda message: message.stamp_ns or message.log_ns,
            CLOCK: self._simulated,
        }
        self._time = choices[choice]

    def arrival_ns(self, message: BagMessage) -> int | None:
        """When ``message`` arrives; None where no time is known yet."""
        return self._time(message)

    def _simulated(self, message: BagMessage) -> int | None:
        if message.topic == self.clock_topic:
            self._simulated_ns = stamp_to_ns(message.message.clock)
        return self._simulated_ns


def wait_ns(seconds: float) -> int | None:
    """A wait in ns, never too short; None for one without end."""
    if seconds == float('inf'):
        return None
    # A rounded nanosecond more, so that what is due at a time is due then.
    return seconds_to_ns(max(0.0, seconds)) + (seconds > 0.0)
