#!/bin/sh
# Run a command as root, by sudo unless this is root already: setup/asroot.sh COMMAND...
#
# The environment stays, PATH included (sudo would reset it): under go test it leads to the toolchain in use. A user's PATH lacks the
# folders of system programs, which are added. Root's go has root's build cache, so that it leaves no files in the user's.
set -eu
[ "$(id -u)" != 0 ] || exec "$@"
command -v sudo >/dev/null || { echo "this needs root: run it as root, or install sudo" >&2; exit 1; }
exec sudo -E env PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" GOCACHE=/root/.cache/go-build "$@"
