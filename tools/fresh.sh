#!/bin/sh
# Run a command that generates files, and fail when it changed any: then they were not fresh. tools/fresh.sh COMMAND...
# Compared are contents before and after, so that it also works in a tree with changes.
set -eu
contents() { git ls-files -co --exclude-standard -z | xargs -0 sha256sum 2>/dev/null; }
before=$(mktemp)
trap 'rm -f "$before"' EXIT
contents >"$before"
"$@"
changed=$(contents | diff "$before" - | sed -n 's/^[<>] [0-9a-f]*  //p' | sort -u)
[ -z "$changed" ] || { echo "generated files were not fresh; run \"make docs\" and commit:" $changed >&2; exit 1; }
