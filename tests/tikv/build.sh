#!/bin/bash
# Builds the server of this directory, unless that was done before, and prints the path of the program. The
# first build downloads about 80 Go modules.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
source="$top/tests/tikv"

command -v go >/dev/null || die "go is not installed"
name=$(cat "$source"/*.go "$source"/go.* <(go version) | sha256sum | cut -c 1-16)
program="$tools/tikv/$name/unistore"
mkdir -p "$(dirname "$program")"
# If several test programs need the server at the same time, only one builds it.
exec 9>"$tools/tikv/lock"
flock 9
if [ ! -x "$program" ]; then
    # TiDB uses names of the standard library that the linker hides since Go 1.23.
    options=$(go tool link -help 2>&1 || true)
    flags=-ldflags=-s
    [[ $options != *checklinkname* ]] || flags+=" -checklinkname=0"
    # Without cgo, no C compiler is needed.
    (cd "$source" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly go build "$flags" -o "$program.new" .) >&2
    mv "$program.new" "$program"
fi
say "$program"
