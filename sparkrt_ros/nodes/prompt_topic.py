"""``~/prompt``: an instruction by topic, taken as if the parameter ``prompt`` were set."""

from __future__ import annotations

from rclpy.node import Node
from rclpy.parameter import Parameter
from std_msgs.msg import String

from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.throttle import ThrottledLog


class PromptTopic:
    """Every message sets the parameter, so the newest counts and the parameter shows it.

    refused: why the last message was not taken; empty where it was, or none came.
    """

    def __init__(self, node: Node) -> None:
        self.refused = ''
        self._node = node
        self._log = ThrottledLog(node.get_logger(), period_s=1.0)
        self._subscription = node.create_subscription(String, '~/prompt', self._take, qos.PROMPT)

    def _take(self, message: String) -> None:
        (result,) = self._node.set_parameters([Parameter('prompt', value=message.data)])
        self.refused = '' if result.successful else result.reason
        if self.refused:
            self._log.warning('prompt', f'~/prompt refused, the old one serves on: {self.refused}')
