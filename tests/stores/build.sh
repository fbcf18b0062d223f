#!/bin/bash
# Installs an object store server for tests below target/tools, unless that was done before, and prints the
# path of the program.
#
#   tests/stores/build.sh {azurite|fake-gcs-server|hdfs}
#
# azurite and fake-gcs-server are emulators that their projects offer for tests: Azurite (MIT, by Microsoft,
# needs Node.js and npm) serves the protocol of Azure Blob Storage, fake-gcs-server (BSD, needs Go) that of
# Google Cloud Storage. hdfs is a NameNode and a DataNode of Apache Hadoop in one process, the cluster of
# Hadoop's own tests (needs Java and Maven).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"

name=${1:-}
case "$name" in
azurite) version=3.37.0 program="node_modules/.bin/azurite-blob" needs=npm ;;
fake-gcs-server) version=v1.56.1 program=fake-gcs-server needs=go ;;
# Change the checksums below with the version.
hdfs) version=3.4.2 program=hdfs needs="java mvn" ;;
*) die "usage: build.sh {azurite|fake-gcs-server|hdfs}" ;;
esac
for need in $needs; do
    command -v "$need" >/dev/null || die "$need is not installed"
done

# Downloads the libraries into a directory, checks them, and writes the program.
install_hdfs() { # DIRECTORY
    mvn --quiet --batch-mode -Dstyle.color=never --file "$top/tests/stores/hdfs.xml" dependency:copy \
        -Dhadoop="$version" -DoutputDirectory="$1/lib" >&2
    (cd "$1/lib" && sha256sum --check --strict --quiet) <<'SUMS'
607c0299f4df33013bd0a0f37c8cf255c635bbaddd247b8fec68c210cc17d19f  hadoop-client-api-3.4.2.jar
ae2406c544825b7734b8aad4f87eff60d9ec422284f0b16c2856032083b63c77  hadoop-client-minicluster-3.4.2.jar
18d071c7f72f8a946677b398a57af9c7afa2dd41a81023c310f99373fec200b3  hadoop-client-runtime-3.4.2.jar
8e495b634469d64fb8acfa3495a065cbacc8a0fff55ce1e31007be4c16dc57d3  junit-4.13.2.jar
88b955a0df57880a26a74708bc34f74dcaf8ebf4e78843a28b50eae945732b06  jaxb-api-2.3.1.jar
d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0  slf4j-api-1.7.36.jar
c214958b07816cb4412b30c7bdbd4308ffdc6ba2a83767b8f3a9229cbd9274d6  slf4j-nop-1.7.36.jar
daddea1ea0be0f56978ab3006b8ac92834afeefbd9b7e4e6316fca57df0fa636  commons-logging-1.2.jar
SUMS
    # In a test, the server spends most of its time on loading and compiling classes, so it uses only the fast
    # compiler (C1).
    cat >"$1/hdfs" <<'PROGRAM'
#!/bin/sh
exec java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData \
    -cp "$(dirname "$0")/lib/*" org.apache.hadoop.test.MiniDFSClusterManager "$@"
PROGRAM
    chmod +x "$1/hdfs"
}

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
    hdfs) install_hdfs "$directory.new" ;;
    esac
    mv "$directory.new" "$directory"
fi
say "$directory/$program"
