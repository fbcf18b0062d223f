#!/bin/bash
# Runs the block store's tests against a real S3 server, which is installed below target/ and started
# on a port of the loopback interface.
#
#   tests/s3/run.sh
#
# The server is VersityGW (Apache-2.0), pinned; it checks signatures and serves a directory. It is built
# with Go, once; where there is no Go, or no network, the test is skipped and says so.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
cd "$top"

version=v1.8.0
server="$tools/versitygw-$version"

skip() {
    say "skipped: $*"
    print_counts 0 0 1
    exit 0
}

if [ ! -x "$server" ]; then
    command -v go >/dev/null || skip "no Go here to build the S3 server with (apt-get install golang)"
    say "Building the S3 server; two minutes the first time."
    mkdir -p "$tools"
    build=$(mktemp -d "$tools/build.XXXXXX")
    # The sources of its modules are 300 MB that nothing else needs.
    GOBIN="$build" GOPATH="$build/go" GOFLAGS=-modcacherw \
        go install "github.com/versity/versitygw/cmd/versitygw@$version" >"$build/log" 2>&1 ||
        { tail -n 5 "$build/log" && rm -rf "$build" && skip "the S3 server cannot be built"; }
    mv "$build/versitygw" "$server"
    rm -rf "$build"
fi

work=$(mktemp -d)
pid=
cleanup() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
mkdir -p "$work/data/limen-test" "$work/home"

# A port that was free a moment ago; if another takes it meanwhile, the next is tried.
for port in $(shuf -i 20000-30000 -n 5); do
    "$server" --port "127.0.0.1:$port" --access limen --secret test-secret --quiet \
        posix "$work/data" >"$work/server.log" 2>&1 &
    pid=$!
    for _ in $(seq 100); do
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

# The keys are in a profile; the test takes them from there and from the environment.
cat >"$work/home/credentials" <<EOF
[limen-profile]
aws_access_key_id = limen
aws_secret_access_key = test-secret
EOF

status=0
env -u AWS_PROFILE LIMEN_TEST_S3="http://127.0.0.1:$port/limen-test" LIMEN_TEST_S3_DIR="$work/data/limen-test" \
    AWS_SHARED_CREDENTIALS_FILE="$work/home/credentials" AWS_CONFIG_FILE="$work/home/config" \
    AWS_ACCESS_KEY_ID=limen AWS_SECRET_ACCESS_KEY=test-secret AWS_EC2_METADATA_DISABLED=true \
    cargo test --quiet --package chunk --test s3 2>&1 | tee "$work/log" || status=$?
read -r p f < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$work/log")
print_counts "$p" "$f" 0
[ "$status" -eq 0 ]
