#!/bin/bash
# Runs the tests of the block store and, as root, those of mounts, on a real S3 server (`tests/tool.sh`),
# which is started on a loopback port.
#
#   tests/s3/run.sh
#
# The tests have a limit of twenty minutes.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$top"

server=$(tests/tool.sh s3s-fs)
# Uses the build of `make test`.
cargo test --quiet --workspace "${test_features[@]}" --test s3 --no-run

work=$(mktemp -d)
pid=
cleanup() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir -p "$work/data/limen-test" "$work/home"

# If another process uses the port, the next port is tried.
for port in $(shuf -i 20000-30000 -n 5); do
    "$server" --host 127.0.0.1 --port "$port" --access-key limen --secret-key test-secret "$work/data" \
        >"$work/server.log" 2>&1 &
    pid=$!
    for _ in $(seq 600); do
        kill -0 "$pid" 2>/dev/null || break
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            break 2
        fi
        sleep 0.1
    done
    kill "$pid" 2>/dev/null || true
    pid=
done
[ -n "$pid" ] || { tail -n 5 "$work/server.log"; die "the S3 server does not start"; }

# The keys are in a profile and in the environment, because the tests use both.
cat >"$work/home/credentials" <<END
[limen-profile]
aws_access_key_id = limen
aws_secret_access_key = test-secret
END

status=0
env -u AWS_PROFILE LIMEN_TEST_S3="http://127.0.0.1:$port/limen-test" LIMEN_TEST_S3_DIR="$work/data/limen-test" \
    AWS_SHARED_CREDENTIALS_FILE="$work/home/credentials" AWS_CONFIG_FILE="$work/home/config" \
    AWS_ACCESS_KEY_ID=limen AWS_SECRET_ACCESS_KEY=test-secret AWS_EC2_METADATA_DISABLED=true \
    timeout --kill-after=10 1200 cargo test --quiet --workspace "${test_features[@]}" --test s3 2>&1 | tee "$work/log" || status=$?
read -r p f < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$work/log")
s=$(grep -ac '^SKIPPED: ' "$work/log" || true)
[ "$status" -ne 124 ] || say "the tests did not end within twenty minutes"
# If no test ran, that is a failure.
p=$((p - s))
if [ $((p + s)) -eq 0 ] || { [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; }; then f=$((f + 1)); fi
print_counts "$p" "$f" "$s"
[ "$f" -eq 0 ]
