#!/bin/sh
# Makes the Python environment of the emulated BMCs: install.sh REQUIREMENTS DIR. A DIR that is complete is left alone.
set -eu
requirements=$1 dir=$2
mkdir -p "$(dirname "$dir")"
exec 9>"$dir.lock"
flock 9
[ ! -e "$dir/complete" ] || exit 0
rm -rf "$dir"
# Debian's own Python, because python3-libvirt is built for that one.
/usr/bin/python3 -m venv --system-site-packages "$dir"
"$dir/bin/python" -m pip install --quiet --no-input --disable-pip-version-check -r "$requirements"
touch "$dir/complete"
