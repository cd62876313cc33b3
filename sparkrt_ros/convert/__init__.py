"""Pure functions between ROS messages and arrays; imports no ROS package."""
