"""Stamps, nanoseconds and ages.

All times are nanoseconds of one clock, the node's: wall time, or simulation time under
``use_sim_time``.
"""

from __future__ import annotations

from typing import Any

from sparkrt_ros.convert.contract_types import StreamTiming
from sparkrt_ros.convert.messages import Stamp
from sparkrt_ros.runtime.errors import MessageError

NS_PER_S = 1_000_000_000
# Farther apart than this, a stamp and the time of arrival come from two clocks; no network and no
# queue delays a sample by an hour.
TWO_CLOCKS_S = 3600.0


def stamp_to_ns(stamp: Stamp) -> int:
    """Nanoseconds of a ``builtin_interfaces/Time`` or ``Duration``."""
    return int(stamp.sec) * NS_PER_S + int(stamp.nanosec)


def fill_stamp(stamp: Stamp, time_ns: int) -> None:
    """Write nanoseconds into a ``builtin_interfaces/Time`` or ``Duration``, in place."""
    stamp.sec, stamp.nanosec = divmod(time_ns, NS_PER_S)


def seconds_to_ns(seconds: float) -> int:
    """Nanoseconds, rounded to the nearest."""
    return round(seconds * NS_PER_S)


def age_s(stamp_ns: int, now_ns: int) -> float:
    """Age in seconds; negative for a stamp ahead of ``now_ns``."""
    return (now_ns - stamp_ns) / NS_PER_S


def sample_time_ns(msg: Any, *, received_ns: int, timing: StreamTiming, topic: str) -> int:
    """When the sample was taken, as ``timing`` says: by its header, or by its arrival.

    Raises MessageError for a zero stamp that the contract does not allow to be dated by arrival,
    and for a stamp of another clock. Neither ever yields an age of decades.
    """
    if timing.clock == 'receive':
        return received_ns
    stamp_ns = stamp_to_ns(msg.header.stamp)
    if stamp_ns == 0:
        if timing.zero_stamp == 'receive':
            return received_ns
        raise MessageError(
            topic,
            found='a header stamp of zero',
            expected='the time the sample was taken',
            remedy='correct the driver, or set zero_stamp: receive for this stream in the robot '
            'contract to date it by arrival',
        )
    gap_s = age_s(stamp_ns, received_ns)
    if abs(gap_s) > TWO_CLOCKS_S:
        side = 'behind' if gap_s > 0 else 'ahead of'
        raise MessageError(
            topic,
            found=f'a header stamp {stamp_ns / NS_PER_S:.3f} s, far {side} the node clock '
            f'{received_ns / NS_PER_S:.3f} s',
            expected='stamps of the same clock',
            remedy='set use_sim_time alike on all nodes (true for a bag or simulator that '
            'publishes /clock), synchronise the machines, or set clock: receive',
        )
    return stamp_ns
