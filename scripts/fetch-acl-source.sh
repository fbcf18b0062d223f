#!/bin/bash
# Fetches and unpacks the source of the installed `acl` package; prints its directory.
#
# Uses the mirror and suite from which this system installed `acl`, through a private apt configuration below
# target/. The system's package sources are not changed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

version=$(dpkg-query --show --showformat '${source:Version}' acl)
work="$tools/acl-source-${version//[^A-Za-z0-9.+~-]/_}"
tree="$work/acl"
if [ -e "$tree/test/run" ]; then
    echo "$tree"
    exit 0
fi

# `apt-cache policy` prints the origins of each version below it: priority, URI, "suite/component",
# architecture, "Packages". The installed version is marked with ***.
origin=$(apt-cache policy acl | awk '$1 == "***" { installed = 1 } installed && $5 == "Packages" { print $2, $3; exit }')
[ -n "$origin" ] || die "no configured package source has acl $version; run apt-get update"
uri=${origin% *}
suite=${origin#* }
component=${suite##*/}
suite=${suite%/*}

rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/download"
{
    echo "Types: deb-src"
    echo "URIs: $uri"
    echo "Suites: $suite"
    echo "Components: $component"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ ! -e "$keyring" ] || echo "Signed-By: $keyring"
} >"$work/limen.sources"
apt_private=(-qq
    -o "Dir::Etc::SourceList=$work/limen.sources" -o "Dir::Etc::SourceParts=-"
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache"
    -o "Acquire::Languages=none" -o "APT::Sandbox::User=root")
cd "$work/download"
{
    apt-get "${apt_private[@]}" update
    apt-get "${apt_private[@]}" source --download-only "acl=$version"
    # apt has verified these files against the signed index, so dpkg-source need not.
    dpkg-source --no-check --extract acl_*.dsc "$tree"
} >"$work/fetch.log" 2>&1 || die "cannot fetch the acl source $version from $uri: $(tail -n 3 "$work/fetch.log")"
rm -rf "$work/lists" "$work/cache"
echo "$tree"
