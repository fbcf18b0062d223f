#!/bin/bash
# `make static`: builds a limen that is linked to no shared library, with musl as its C library. Prints the
# path of the program last.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

target=$(uname -m)-unknown-linux-musl
command -v musl-gcc >/dev/null || die "musl-gcc is not installed: apt-get install musl-tools"
rustc --print target-libdir --target "$target" | xargs test -d || die "Rust cannot build for musl: rustup target add $target"
# SQLite, ring, zstd and BLAKE3 have parts in C.
env "CC_${target//-/_}=musl-gcc" cargo build --release --package cli --target "$target"
program=${CARGO_TARGET_DIR:-$top/target}/$target/release/limen
[[ $(ldd "$program" 2>&1) != *"=>"* ]] || die "$program is linked to shared libraries"
say "$program"
