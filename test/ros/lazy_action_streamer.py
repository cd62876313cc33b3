"""The action streamer, which looks at joint states less often than they may be old."""

import sys

from sparkrt_ros.nodes import polled
from sparkrt_ros.nodes.action_streamer import ActionStreamer
from sparkrt_ros.nodes.shutdown import run_node

if __name__ == '__main__':
    polled.POLLS_PER_AGE = polled.SLOWEST_POLL_HZ = 0.5
    sys.exit(run_node(ActionStreamer))
