"""The two managed nodes: ``policy_node`` and ``action_streamer``."""
