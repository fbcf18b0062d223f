#!/bin/bash
# Checks the dependencies against deny.toml.
#
#   scripts/deny.sh [offline]
#
# `make deny` checks everything; the advisories come from a database on the network. With `offline`,
# as in `make test`, licences, bans and sources only.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

version=0.20.2
program="$tools/bin/cargo-deny"
if [ "$("$program" --version 2>/dev/null || true)" != "cargo-deny $version" ]; then
    say "installing cargo-deny $version below target/tools; two minutes, once"
    # Without optimisation it builds in a third of the time, and checks in a second.
    cargo install --quiet --locked --debug --force --root "$tools" cargo-deny --version "$version"
fi
# It reads the manifests of what other targets would need too, which no build here has fetched.
cargo fetch --quiet --locked
"$program" --offline check licenses bans sources
[ "${1:-}" != offline ] || exit 0
"$program" check advisories ||
    die "advisories: see above; without the network their database cannot be fetched"
