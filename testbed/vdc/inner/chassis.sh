# The chassis of one of ipmi_sim's machines, as ipmi_lan(5) wants it: chassis.sh DIR MACHINE get|set PARAMETER [VALUE] ...
# The network comes first in every machine's boot order, so boot devices are only remembered.
boot=$1/kcs/$2/boot
machine=$2 what=$3
shift 3
case $what in
get)
	for p; do
		case $p in
		power) virsh domstate "$machine" | grep -q 'shut off' && echo power:0 || echo power:1 ;;
		boot) echo "boot:$(cat "$boot" 2>/dev/null || echo default)" ;;
		*) exit 1 ;;
		esac
	done ;;
set)
	while [ $# -gt 1 ]; do
		case $1:$2 in
		power:1) virsh start "$machine" >/dev/null & ;; # ipmi_sim answers nobody meanwhile; the power follows, as a machine's does
		power:0) virsh destroy "$machine" || virsh domstate "$machine" | grep -q 'shut off' || exit 1 ;;
		reset:*) virsh reset "$machine" || exit 1 ;;
		shutdown:*) virsh shutdown "$machine" || exit 1 ;;
		boot:*) echo "$2" >"$boot" ;;
		*) exit 1 ;;
		esac
		shift 2
	done >&2 ;;
esac
exit 0
