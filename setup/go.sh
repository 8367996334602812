#!/bin/sh
# Print the path of a go command that can build this project, or fail and say why there is none.
#
# go.mod asks for Go 1.26. A go command from 1.21 on is enough: with GOTOOLCHAIN=auto, which the Makefile sets because
# Debian's default is "local", it fetches the wanted toolchain from the Go module proxy, verified like any module.
set -u
oldest_minor=21

for go in "$(command -v go 2>/dev/null)" /usr/local/go/bin/go /usr/bin/go /usr/lib/go-1.*/bin/go; do
	[ -x "$go" ] || continue
	minor=$(cd / && GOTOOLCHAIN=local "$go" version 2>/dev/null | sed -n 's/.* go1\.\([0-9]*\).*/\1/p')
	if [ "${minor:-0}" -ge "$oldest_minor" ]; then
		echo "$go"
		exit 0
	fi
done
echo "no go command of version 1.$oldest_minor or later was found; run setup/install.sh" >&2
exit 1
