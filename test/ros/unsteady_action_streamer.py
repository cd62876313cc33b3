"""The action streamer, which spends WORK_S more at every other tick."""

import os
import sys
import time

from sparkrt_ros.nodes.action_streamer import ActionStreamer
from sparkrt_ros.nodes.shutdown import run_node

WORK_S = float(os.environ.get('WORK_S', '0.003'))


class UnsteadyStreamer(ActionStreamer):
    ticks = 0

    def _poll_chunks(self) -> None:
        UnsteadyStreamer.ticks += 1
        super()._poll_chunks()
        time.sleep(WORK_S * (UnsteadyStreamer.ticks % 2))


if __name__ == '__main__':
    sys.exit(run_node(UnsteadyStreamer))
