"""The ROS-free runtime: load a policy folder, run it, chunk its actions."""
