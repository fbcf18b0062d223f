#!/bin/bash
# Fetches the source of the installed `acl` package and unpacks it; prints the directory it is in.
#
# It asks the mirror and the suite that this system already uses for `acl`, through an apt
# configuration of its own below target/: the system's package sources are not changed.
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

# `apt-cache policy` names below each version where it comes from: priority, archive, "suite/component",
# architecture, "Packages". The installed version is marked ***.
origin=$(apt-cache policy acl | awk '$1 == "***" { installed = 1 } installed && $5 == "Packages" { print $2, $3; exit }')
[ -n "$origin" ] || die "no configured package source offers acl $version; run apt-get update"
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
    # apt has already checked the signed index against these files.
    dpkg-source --no-check --extract acl_*.dsc "$tree"
} >"$work/fetch.log" 2>&1 || die "cannot fetch the acl source $version from $uri: $(tail -n 3 "$work/fetch.log")"
rm -rf "$work/lists" "$work/cache"
echo "$tree"
