#!/bin/sh
# Run each end-to-end test in a process of its own, some of them beside each other, since they mostly wait: beside.sh COUNT PROGRAM, with a folder for
# temporary files as TMPDIR. What a test prints comes once it has ended, and all of it if it failed.
set -eu
count=$1
program=$(realpath "$2")
cd "$(dirname "$0")"
export program
"$program" -test.list . | grep '^Test' | xargs -P "$count" -I NAME sh -c '
	tmp=$TMPDIR/$$ # paths of sockets must be short
	mkdir "$tmp" || exit
	begun=$(date +%s)
	if TMPDIR=$tmp ../../setup/asroot.sh ./alone.sh "$program" -test.run "^NAME\$" -test.v -test.timeout 20m >"$tmp.log" 2>&1; then
		grep -E "^ *--- SKIP|: measured" "$tmp.log"
		echo "ok NAME $(($(date +%s) - begun)) s"
		code=0
	else
		cat "$tmp.log"
		echo "FAIL NAME $(($(date +%s) - begun)) s"
		code=1
	fi
	rm -rf "$tmp" "$tmp.log"
	exit $code'
