#!/bin/bash
# Installs an object store server for tests below target/tools, unless that was done before, and prints the
# path of the program.
#
#   tests/stores/build.sh {azurite|fake-gcs-server}
#
# Both are emulators that their projects offer for tests: Azurite (MIT, by Microsoft, needs Node.js and npm)
# serves the protocol of Azure Blob Storage, fake-gcs-server (BSD, needs Go) that of Google Cloud Storage.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"

name=${1:-}
case "$name" in
azurite) version=3.37.0 program="node_modules/.bin/azurite-blob" needs=npm ;;
fake-gcs-server) version=v1.56.1 program=fake-gcs-server needs=go ;;
*) die "usage: build.sh {azurite|fake-gcs-server}" ;;
esac
command -v "$needs" >/dev/null || die "$needs is not installed"
directory="$tools/$name/$version"
mkdir -p "$tools/$name"
# If several tests need the server at the same time, only one installs it.
exec 9>"$tools/$name/lock"
flock 9
if [ ! -x "$directory/$program" ]; then
    rm -rf "$directory" "$directory.new"
    mkdir "$directory.new"
    case "$name" in
    azurite) npm install --prefix "$directory.new" --no-audit --no-fund --silent "azurite@$version" >&2 ;;
    # Without cgo, no C compiler is needed.
    fake-gcs-server)
        CGO_ENABLED=0 GOWORK=off GOFLAGS= GOBIN="$directory.new" go install "github.com/fsouza/fake-gcs-server@$version" >&2
        ;;
    esac
    mv "$directory.new" "$directory"
fi
say "$directory/$program"
