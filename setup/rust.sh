#!/bin/sh
# Print the path of a cargo command that can build gpuremote/, or fail and say why there is none.
#
# Its crates ask for Rust 1.85. clippy and rustfmt are found by cargo itself, beside it.
set -u
oldest_minor=85

for cargo in "$(command -v cargo 2>/dev/null)" "${HOME:-/root}/.cargo/bin/cargo" /usr/bin/cargo; do
	[ -x "$cargo" ] || continue
	minor=$(cd / && "$cargo" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p')
	if [ "${minor:-0}" -ge "$oldest_minor" ] && "$cargo" clippy --version >/dev/null 2>&1 && "$cargo" fmt --version >/dev/null 2>&1; then
		echo "$cargo"
		exit 0
	fi
done
echo "no cargo command of version 1.$oldest_minor or later with clippy and rustfmt was found; run setup/install.sh gpu" >&2
exit 1
