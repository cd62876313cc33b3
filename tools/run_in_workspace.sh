#!/bin/sh
# Run a command with the environment and the built package on its paths:
#   tools/run_in_workspace.sh ros2 node list
# Discovery stays on this machine unless the caller says otherwise.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${AMENT_PREFIX_PATH:-}" ] || [ -z "${ROS_DISTRO:-}" ]; then
    AMENT_PREFIX_PATH="$root/.venv"
    export AMENT_PREFIX_PATH
fi
set +u
. "$root/install/local_setup.sh"
set -u
PATH="$root/.venv/bin:$root/install/sparkrt/lib/sparkrt:$PATH"
: "${ROS_AUTOMATIC_DISCOVERY_RANGE:=LOCALHOST}"
: "${FASTDDS_DEFAULT_PROFILES_FILE:=$root/config/fastdds.xml}"
export PATH ROS_AUTOMATIC_DISCOVERY_RANGE FASTDDS_DEFAULT_PROFILES_FILE
exec "$@"
