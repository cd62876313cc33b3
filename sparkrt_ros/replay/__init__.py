"""Recorded bags through the code of the live nodes, and what came out compared. No ROS needed."""
