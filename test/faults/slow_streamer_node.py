"""The action streamer whose configure takes WAIT_S seconds longer, and says so when it begins."""

import os
import sys
import threading

from sparkrt_ros.nodes.action_streamer import ActionStreamer
from sparkrt_ros.nodes.shutdown import run_node


class SlowStreamer(ActionStreamer):
    def configure(self):
        print('configuring', flush=True)  # noqa: T201
        threading.Event().wait(float(os.environ.get('WAIT_S', '600')))
        super().configure()


if __name__ == '__main__':
    sys.exit(run_node(SlowStreamer))
