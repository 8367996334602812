#!/bin/sh
# The chassis of ipmi_sim's machine: chassis.sh DIR get|set PARAMETER [VALUE] ... Its state is in files.
dir=$1 what=$2
shift 2
case $what in
get)
	for p; do
		case $p in
		power) echo "power:$(cat "$dir/power" 2>/dev/null || echo 0)" ;;
		boot) echo "boot:$(cat "$dir/boot" 2>/dev/null || echo default)" ;;
		*) exit 1 ;;
		esac
	done ;;
set)
	while [ $# -gt 1 ]; do
		case $1 in
		power | boot) echo "$2" >"$dir/$1" ;;
		shutdown) echo 0 >"$dir/power" ;;
		*) exit 1 ;;
		esac
		shift 2
	done ;;
esac
