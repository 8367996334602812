#!/bin/sh
# Run a test in a network of its own: go test -exec tests/e2e/alone.sh. Tests make no links or rules beside the host's, and those that
# other programs make meanwhile are not taken for theirs. Mounts stay the host's: some kernels (6.18) let a mount namespace be pinned
# reliably from the host's own only, which is what "nearmetal dev" does.
set -eu
exec unshare --net --ipc sh -c 'ip link set lo up && exec "$@"' sh "$@"
