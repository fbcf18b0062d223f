#!/bin/bash
# Checks the dependencies against deny.toml.
#
#   scripts/deny.sh [offline]
#
# `make deny` checks everything; it fetches the database of advisories from the network. With `offline`, as in
# `make test`, only licences, bans and sources are checked.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

version=0.20.2
program="$tools/bin/cargo-deny"
if [ "$("$program" --version 2>/dev/null || true)" != "cargo-deny $version" ]; then
    say "installing cargo-deny $version below target/tools; two minutes, once"
    # Without optimisation, cargo-deny builds in a third of the time, and still checks in a second.
    cargo install --quiet --locked --debug --force --root "$tools" cargo-deny --version "$version"
fi
# cargo-deny also reads manifests of dependencies for other targets, which no build here has fetched.
cargo fetch --quiet --locked
"$program" --offline check licenses bans sources
[ "${1:-}" != offline ] || exit 0
"$program" check advisories ||
    die "the check of advisories failed, see above; it needs the network to fetch its database"
