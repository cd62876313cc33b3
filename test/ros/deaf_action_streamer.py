"""The action streamer with a middleware that does not tell when messages come."""

import ctypes
import sys

from sparkrt_ros.nodes import native
from sparkrt_ros.nodes.action_streamer import ActionStreamer
from sparkrt_ros.nodes.shutdown import run_node

UNSUPPORTED = 3

if __name__ == '__main__':
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 3)
    native.rcl().rcl_subscription_set_on_new_message_callback = kind(lambda *_: UNSUPPORTED)
    sys.exit(run_node(ActionStreamer))
