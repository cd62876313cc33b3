"""When the kernel lets the threads of this process run, and when the interpreter does."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
from collections.abc import Sequence

SWITCH_INTERVAL_S = 0.0005
# As long as a control tick takes, so that it is not cut in two; shorter than that of others, and
# no longer than Linux leaves a thread alone for.
TIME_SLICE_S = 0.0007
# As long as it takes to publish a command. Linux grants 0.1 ms at least.
SENDER_TIME_SLICE_S = 0.0002
# For work that gains nothing from running in many short turns, and may wait for the next.
LONG_TIME_SLICE_S = 0.005

REALTIME_REMEDY = (
    "allow it for your user: a line '<user> - rtprio 80' in /etc/security/limits.d/realtime.conf "
    'and a new login (containers: --ulimit rtprio=80 or --cap-add=SYS_NICE), or set '
    'control.realtime_priority to 0'
)

# Neither Python nor older C libraries have a function for it.
_SCHED_SETATTR = {'x86_64': 314, 'aarch64': 274, 'riscv64': 274}


class _SchedulingAttributes(ctypes.Structure):
    """``struct sched_attr`` of linux/sched/types.h, as far as its first version goes."""

    _fields_ = (
        ('size', ctypes.c_uint32),
        ('sched_policy', ctypes.c_uint32),
        ('sched_flags', ctypes.c_uint64),
        ('sched_nice', ctypes.c_int32),
        ('sched_priority', ctypes.c_uint32),
        ('sched_runtime', ctypes.c_uint64),
        ('sched_deadline', ctypes.c_uint64),
        ('sched_period', ctypes.c_uint64),
    )


def set_realtime(priority: int, *, thread_id: int = 0, slice_s: float = TIME_SLICE_S) -> str:
    """SCHED_FIFO for a thread, 0 for none; why it was refused, '' if it was not.

    thread_id: of the kernel; 0: the calling thread. slice_s: of its turns without priority.
    """
    policy = os.SCHED_FIFO if priority else os.SCHED_OTHER
    try:
        os.sched_setscheduler(thread_id, policy, os.sched_param(priority))
    except OSError as error:
        return str(error)
    if not priority:
        set_time_slice(slice_s, thread_id=thread_id)
    return ''


def set_time_slice(slice_s: float = TIME_SLICE_S, *, thread_id: int = 0) -> bool:
    """Ask for turns of a thread of another length; whether that was granted.

    Short ones come sooner. Threads that it starts from then on have the same. Its share of the
    processor stays what it is, so no privilege is needed. From Linux 6.12 on, a thread that wakes
    up with a shorter slice than the one that runs need not wait until that one's is used up, which
    only the timer's tick ends (4 ms at 250 Hz). Older kernels ignore it. Threads that are not
    scheduled normally are left alone.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(thread_id) != os.SCHED_OTHER:
        return False
    attributes = _SchedulingAttributes(
        size=ctypes.sizeof(_SchedulingAttributes),
        sched_policy=os.SCHED_OTHER,
        sched_nice=os.getpriority(os.PRIO_PROCESS, thread_id),
        sched_runtime=round(slice_s * 1e9),
    )
    return bool(ctypes.CDLL(None).syscall(number, thread_id, ctypes.byref(attributes), 0) == 0)


def spread_threads(thread_ids: Sequence[int]) -> None:
    """Share the calling thread's processors out among these threads, where there are enough.

    So that no two of them wait for the same one.
    """
    cpus = sorted(os.sched_getaffinity(0))
    for index, thread_id in enumerate(thread_ids):
        os.sched_setaffinity(thread_id, cpus[index :: len(thread_ids)] or cpus)


def settle_process() -> None:
    """Keep this process's interpreter out of the control loop's way; call once all is loaded.

    Process-wide, so it is for the process that exists for the loop, not for a library.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
