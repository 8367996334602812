#!/bin/sh
# Run a test in a network of its own and with a group of its own: go test -exec tests/e2e/alone.sh. Tests make no links or rules beside
# the host's, and what other programs make meanwhile is not taken for theirs. hostsnapshot.OwnGroup chooses the same group. Mounts stay the host's: some kernels (6.18) let a mount namespace be pinned
# reliably from the host's own only, which is what "nearmetal dev" does.
set -eu
exec unshare --net --ipc sh -c '
	ip link set lo up || exit
	group=$((0x6e6d0000 + $$))
	setpriv --regid=$group --keep-groups true 2>/dev/null || group=$(id -g) # a user namespace may lack it
	exec setpriv --regid=$group --keep-groups "$@"' sh "$@"
