#!/bin/sh
# Runs the programs in the folder $1, with the libraries that LD_LIBRARY_PATH names, and reports each. The status is the number of
# programs that failed.
set -u
failed=0
for program in "$1"/*; do
    name=$(basename "$program")
    if output=$(timeout 60 "$program" 2>&1); then
        echo "pass $name"
    else
        failed=$((failed + 1))
        echo "FAIL $name: $(printf '%s' "$output" | tail -n 3)"
    fi
done
exit "$failed"
