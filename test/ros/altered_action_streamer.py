"""The action streamer with an outlet that raises at its n-th command, n from RAISE_AT."""

import os
import sys

from sparkrt_ros.nodes.action_streamer import ActionStreamer
from sparkrt_ros.nodes.shutdown import run_node
from sparkrt_ros.nodes.streamer_outlet import CommandOutlet


class FailingOutlet(CommandOutlet):
    left = int(os.environ.get('RAISE_AT', '20'))

    def prepare(self, command, *, now_ns):
        FailingOutlet.left -= 1
        if FailingOutlet.left == 0:
            raise RuntimeError('the outlet broke')
        super().prepare(command, now_ns=now_ns)


if __name__ == '__main__':
    from sparkrt_ros.nodes import streamer_parts

    streamer_parts.CommandOutlet = FailingOutlet
    sys.exit(run_node(ActionStreamer))
