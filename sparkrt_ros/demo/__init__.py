"""The demo: the embedded robot, its policy and the streamer as processes, and a report."""
