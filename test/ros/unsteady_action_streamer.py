"""The action streamer, which spends WORK_S more at every other tick."""

import os
import sys
import time

from sparkrt_ros.nodes import streamer_parts
from sparkrt_ros.nodes.action_streamer import ActionStreamer
from sparkrt_ros.nodes.message_pacer import MessagePacer
from sparkrt_ros.nodes.shutdown import run_node

WORK_S = float(os.environ.get('WORK_S', '0.003'))


class UnsteadyPacer(MessagePacer):
    ticks = 0

    def messages_wait(self) -> bool:
        UnsteadyPacer.ticks += 1
        time.sleep(WORK_S * (UnsteadyPacer.ticks % 2))
        return super().messages_wait()


if __name__ == '__main__':
    streamer_parts.MessagePacer = UnsteadyPacer
    sys.exit(run_node(ActionStreamer))
