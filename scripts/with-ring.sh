#!/bin/bash
# Runs a command while the kernel offers FUSE over io_uring, so that mounts use it, and restores the setting.
# Requires root.
#
#   scripts/with-ring.sh COMMAND...
set -euo pipefail
parameter=/sys/module/fuse/parameters/enable_uring
before=$(cat "$parameter")
trap 'echo "$before" >"$parameter"' EXIT
echo Y >"$parameter"
"$@"
