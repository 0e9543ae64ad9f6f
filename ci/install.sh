#!/usr/bin/env bash
# Installs Debian packages. Scripts that run side by side wait for one another.
#
# usage: ci/install.sh PACKAGE...
set -euo pipefail
sudo=()
[[ $(id -u) == 0 ]] || sudo=(sudo)
exec 9>"${TMPDIR:-/tmp}/octaplex-install"
flock 9
[[ "$*" != *:arm64* ]] || "${sudo[@]}" dpkg --add-architecture arm64
"${sudo[@]}" apt-get update -qq
# A service that a package starts does not keep the lock.
"${sudo[@]}" apt-get install -qq -y --no-install-recommends "$@" >/dev/null 9>&-
