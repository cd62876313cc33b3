"""sparkrt: learned robot policies on ROS 2, at control rate."""

__version__ = '0.1.0'
