#!/bin/sh
# Everything that needs a GPU, in one call: GPU tests, benchmarks, the whole node with ROS.
#   tools/gpu_check.sh [--wheels FOLDER] [--limit SECONDS] [--only STEP ...] [--small]
# Needs a Python with torch; set PYTHON to choose one. ROS 2 comes from the wheels in FOLDER
# (default: .whl in this folder, left out where it is missing) or is there already.
# Reports go to $OUT, or to ./out.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
exec "${PYTHON:-python3}" "$root/tools/gpu_check.py" "$@"
