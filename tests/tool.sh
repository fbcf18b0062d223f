#!/bin/bash
# Installs a tool of the suites from crates.io below target/, pinned, unless that was done before, and prints
# the path of its program. Building a tool takes some minutes.
#
#   tests/tool.sh fsx|pjdfstest|s3s-fs
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"

name=${1:-} options=()
case "$name" in
    fsx) version=0.3.2 ;;
    pjdfstest) version=0.2.2 ;;
    # An S3 server (Apache-2.0) that checks signatures and serves a directory.
    s3s-fs) version=0.14.1 options=(--features binary) ;;
    *) die "usage: tool.sh fsx|pjdfstest|s3s-fs" ;;
esac

program="$tools/bin/$name"
is_installed() { [ "$("$program" --version 2>/dev/null || true)" = "$name $version" ]; }
if ! is_installed; then
    mkdir -p "$tools"
    # If a tool is needed while it is being installed, only one process installs it.
    exec 9>"$tools/$name.lock"
    flock --nonblock 9 || { say "waiting until another process has installed $name" >&2 && flock 9; }
    if ! is_installed; then
        say "installing $name $version below target/tools" >&2
        cargo install --quiet --locked --force --root "$tools" "$name" --version "$version" \
            ${options[@]+"${options[@]}"} >&2 9>&-
    fi
fi
say "$program"
