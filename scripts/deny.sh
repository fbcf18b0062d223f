#!/bin/bash
# `make deny`: checks the dependencies against deny.toml.
#
# Not part of `make test`: cargo-deny takes some minutes to build, and the advisories come from a
# database on the network. Licences, bans and sources need neither and are judged first.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

version=0.20.2
program="$tools/bin/cargo-deny"
if [ "$("$program" --version 2>/dev/null || true)" != "cargo-deny $version" ]; then
    say "installing cargo-deny $version below target/tools; some minutes"
    cargo install --quiet --locked --root "$tools" cargo-deny --version "$version"
fi
"$program" --offline check licenses bans sources
"$program" check advisories ||
    die "advisories: see above; without the network their database cannot be fetched"
