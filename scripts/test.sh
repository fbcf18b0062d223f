#!/bin/bash
# `make test`: runs every check, and continues after a failure.
#
# The last line is `N passed, N failed, N skipped`. It counts the tests of the crates, the checks of the
# source (one each), and the suites that run on a mounted volume. The lines above it name each test that was
# skipped, as a whole or in part, with the reason. A test that lacks something that can be provided (root, a
# program, a server) fails, unless LIMEN_ALLOW_SKIPS=1 allows skipping it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

if [ "$(id -u)" -ne 0 ] && [ -z "${LIMEN_ALLOW_SKIPS:-}" ]; then
    die "most tests mount, which requires root: run as root, or set LIMEN_ALLOW_SKIPS=1 to skip them"
fi

logs="$top/target/test-logs"
mkdir -p "$logs"
# The summary reads the logs, so remove those of an earlier run.
rm -f "$logs"/*.log
passed=0 failed=0 skipped=0
failures=()

# The running step is a process group, so that an interrupt ends all its processes. This script waits until
# the scripts of the step have cleaned up.
job= sim_job= tools_job=
interrupted() {
    trap '' INT TERM HUP
    for background in $sim_job $tools_job; do
        kill -TERM -- "-$background" 2>/dev/null || true
    done
    if [ -n "$job" ]; then
        kill -TERM -- "-$job" 2>/dev/null || true
        # The leader exits at once. Processes that clean up get a minute.
        for _ in $(seq 600); do
            kill -0 -- "-$job" 2>/dev/null || break
            sleep 0.1
        done
    fi
    exit 130
}
trap interrupted INT TERM HUP

# Runs one step; its output goes to the terminal and to a log.
step() { # NAME COMMAND...
    local name=$1 started=$SECONDS status=0
    shift
    say "=== $name"
    set -m
    { "$@" 2>&1 </dev/null | tee "$logs/$name.log"; } &
    job=$!
    set +m
    wait "$job" || status=$?
    job=
    say "($name took $((SECONDS - started)) s)"
    return "$status"
}

# A step that counts as one check.
check() { # NAME COMMAND...
    if step "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        failures+=("$1")
    fi
}

add() { # NAME STATUS PASSED FAILED SKIPPED
    local now_failed=$4
    # A crash, a build error or a timeout leaves no count, but is a failure.
    if [ "$2" -ne 0 ] && [ "$now_failed" -eq 0 ]; then now_failed=1; fi
    passed=$((passed + $3)) failed=$((failed + now_failed)) skipped=$((skipped + $5))
    if [ "$now_failed" -gt 0 ]; then failures+=("$1"); fi
}

export CARGO_TERM_COLOR=never
check fmt cargo fmt --all --check
check clippy cargo clippy --workspace "${test_features[@]}" --all-targets --quiet -- -D warnings
# The default build has no features.
check clippy-default cargo clippy --package engine-tikv --all-targets --quiet -- -D warnings
check tidy cargo xtask tidy
check deny scripts/deny.sh offline

# The number of lines in a log that begin with HOW: SKIPPED, "SKIPPED IN PART", or LATER for a test that a
# later step runs.
said() { # LOG HOW
    grep -ac "^$2: " "$logs/$1.log" || true
}

# If this server cannot be built, the tests that need it fail or are skipped.
step tikv-server tests/tikv/build.sh || true

# A test program that hangs fails after 20 minutes, so that the rest still runs. No program takes half of that.
host=$(rustc -vV | sed -n 's/^host: //p')
runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER
export "$runner=timeout --foreground --kill-after=10 1200"

# The build needs every CPU, but the tests mostly wait. So the tools of the later steps are built beside them.
built=true
step build cargo test --workspace "${test_features[@]}" --quiet --no-run || built=false
set -m
{ for tool in s3s-fs pjdfstest fsx; do nice -n 19 tests/tool.sh "$tool" || true; done; } >"$logs/tools.log" 2>&1 </dev/null &
tools_job=$!
set +m

status=0
step cargo-test env LIMEN_TEST_S3=later cargo test --workspace "${test_features[@]}" --no-fail-fast --quiet || status=$?
# "test result: ok. 3 passed; 0 failed; 1 ignored; ...". A test that returns early counts as passed there.
read -r p f s < <(awk '/^test result:/ { p += $4; f += $6; s += $8 } END { print p + 0, f + 0, s + 0 }' "$logs/cargo-test.log")
whole=$(said cargo-test SKIPPED) part=$(said cargo-test "SKIPPED IN PART") later=$(said cargo-test LATER)
add cargo-test "$status" $((p - whole - later)) "$f" $((s + whole + part))

# Runs the tests of mounts again over io_uring, unless they have just used it. If the kernel does not offer
# io_uring, they were skipped in part above.
if [ "$(cat /sys/module/fuse/parameters/enable_uring 2>/dev/null)" = N ] && [ "$(id -u)" -eq 0 ]; then
    status=0
    step ring scripts/with-ring.sh env LIMEN_TEST_S3=later cargo test --workspace "${test_features[@]}" --no-fail-fast --quiet \
        --test mount --test shared --test take_over --test network \
        -- --skip postgres:: --skip mariadb:: --skip etcd:: --skip tikv:: || status=$?
    read -r p f s < <(awk '/^test result:/ { p += $4; f += $6; s += $8 } END { print p + 0, f + 0, s + 0 }' "$logs/ring.log")
    whole=$(said ring SKIPPED) part=$(said ring "SKIPPED IN PART")
    add ring "$status" $((p - whole)) "$f" $((s + whole + part))
fi

# Two minutes of simulated clients and two of simulated mounts, with new seeds, at low priority next to the
# following steps. The arguments are as above, so that nothing is rebuilt.
sim_started=$SECONDS
set -m
LIMEN_SIM_SECONDS="${LIMEN_SIM_SECONDS:-120}" nice -n 19 cargo test --workspace "${test_features[@]}" --quiet --test histories --test mounts -- \
    --nocapture every_history whole_mounts >"$logs/sim.log" 2>&1 </dev/null &
sim_job=$!
set +m

status=0
step s3 tests/s3/run.sh || status=$?
read -r p f s <<<"$(counts_of "$logs/s3.log")"
add s3 "$status" "${p:-0}" "${f:-0}" "${s:-0}"
if [ $((${p:-0} + ${f:-0} + ${s:-0})) -ne "$later" ]; then
    say "cargo test left $later tests to s3, which ran another number"
    failed=$((failed + 1))
    failures+=("s3: another number of tests")
fi

# The build of the tests includes the program.
limen=${CARGO_TARGET_DIR:-$top/target}/debug/limen
if "$built"; then
    status=0
    step mounted as_root env "PATH=$PATH" "CARGO_HOME=${CARGO_HOME:-${HOME:-/root}/.cargo}" "RUSTUP_HOME=${RUSTUP_HOME:-${HOME:-/root}/.rustup}" \
        "LIMEN=$limen" "$top/scripts/test-mount.sh" || status=$?
    read -r p f s <<<"$(counts_of "$logs/mounted.log")"
    add mounted "$status" "${p:-0}" "${f:-0}" "${s:-0}"
else
    failed=$((failed + 1))
    failures+=("mounted: $limen was not built")
fi
wait "$tools_job" || true
tools_job=

status=0
wait "$sim_job" || status=$?
sim_job=
say "=== sim"
cat "$logs/sim.log"
say "(sim took at most $((SECONDS - sim_started)) s, in parallel with the steps above)"
read -r p f s < <(awk '/^test result:/ { p += $4; f += $6; s += $8 } END { print p + 0, f + 0, s + 0 }' "$logs/sim.log")
add sim "$status" "$p" "$f" "$s"

# Every skip that is counted must be named.
skips=$(sed -n 's/^SKIPPED\( IN PART\)\{0,1\}: /skipped\1: /p' "$logs"/{cargo-test,ring,s3,mounted}.log 2>/dev/null || true)
named=$(grep -c . <<<"$skips" || true)
if [ "$named" -ne "$skipped" ]; then
    failed=$((failed + 1))
    failures+=("skips: $skipped counted, $named named")
fi

say
[ -z "$skips" ] || say "$skips"
say "$((SECONDS / 60)) min $((SECONDS % 60)) s, logs in target/test-logs"
[ ${#failures[@]} -eq 0 ] || say "failed in: ${failures[*]}"
say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
