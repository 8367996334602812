#!/bin/bash
# A Slurm of one node, to run jobs beside Nearmetal's: munged, slurmctld and slurmd of this machine's Debian packages.
#
#   slurm.sh missing           prints what is not installed, a program a line
#   slurm.sh serve DIR         runs the daemons below DIR; prints "ready" when DIR/slurm.conf serves srun and all others
#   slurm.sh many DIR COUNT    runs COUNT jobs of true, one array; returns when all have ended
#   slurm.sh check DIR COUNT   runs COUNT jobs, one array, and proves that each has run
#
# It uses nothing of a Slurm or munge that the machine may have: configuration, key, sockets, state and logs are below DIR, ports on loopback. serve
# has to be the first process of a PID namespace, with a mount namespace of its own: killing it kills all daemons and jobs. By hand:
#
#   unshare --net --mount --pid --fork --kill-child sh -c 'ip link set lo up; exec bench/peers/slurm.sh serve /tmp/slurm'
#   nsenter --net --target PID bench/peers/slurm.sh many /tmp/slurm 1000
#
# Environment: CPUS (1024: how many jobs run at once), PORT (16817, slurmctld; the next is slurmd's), SETTINGS (further lines of
# slurm.conf, for trying others).
set -euo pipefail

PORT=${PORT:-16817}
ADDRESS=192.0.2.1 # of documentation (RFC 5737): no other side has it

die() { echo "slurm.sh: $*" >&2; exit 1; }

missing() {
	local pair
	for pair in munged:munge slurmctld:slurmctld slurmd:slurmd srun:slurm-client sbatch:slurm-client squeue:slurm-client; do
		command -v "${pair%:*}" >/dev/null || echo "${pair%:*} (package ${pair#*:})"
	done
}

# configure writes what the daemons read. What differs from Slurm's defaults, to be fast:
#
# - CPUs: the node is said to have more than it has (config_overrides), so that all jobs of an array start at once. Slurm 22.05 looks for the next
#   jobs once a second. With an epilog it does as soon as a job's end is reported, which was slower (docs/performance.md).
# - batch_sched_delay, sched_interval: a new array is looked at within 1 s instead of 3; default_queue_depth: all that wait are looked at.
# - sched/builtin, priority/basic, no accounting, no gathering, quiet logs, no cgroups (linuxproc, task/none): least work for each job.
# - MinJobAge: records of ended jobs go at the next purge, so that they don't slow the scheduler down.
configure() {
	local host cpus=${CPUS:-1024}
	host=$(uname -n)
	host=${host%%.*}
	mkdir -p "$DIR"/{munge,state,spool,proof}
	chmod 711 "$DIR"
	chmod 755 "$DIR/munge"
	head -c 128 /dev/urandom >"$DIR/munge/key"
	chmod 600 "$DIR/munge/key"
	echo CgroupAutomount=no >"$DIR/cgroup.conf"
	cat >"$DIR/slurm.conf" <<-END
		ClusterName=bench
		SlurmctldHost=$host(127.0.0.1)
		SlurmctldPort=$PORT
		SlurmdPort=$((PORT + 1))
		SlurmUser=root
		SlurmdUser=root
		AuthType=auth/munge
		AuthInfo=socket=$DIR/munge/socket
		CredType=cred/munge
		StateSaveLocation=$DIR/state
		SlurmdSpoolDir=$DIR/spool
		SlurmctldPidFile=$DIR/slurmctld.pid
		SlurmdPidFile=$DIR/slurmd.pid
		SlurmctldLogFile=$DIR/slurmctld.log
		SlurmdLogFile=$DIR/slurmd.log
		SlurmctldDebug=error
		SlurmdDebug=error
		MailProg=/bin/true
		ReturnToService=2
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		SwitchType=switch/none
		MpiDefault=none
		JobAcctGatherType=jobacct_gather/none
		AccountingStorageType=accounting_storage/none
		JobCompType=jobcomp/none
		PriorityType=priority/basic
		SelectType=select/cons_tres
		SelectTypeParameters=CR_CPU
		SchedulerType=sched/builtin
		SchedulerParameters=batch_sched_delay=0,sched_interval=1,default_queue_depth=10000
		SlurmdParameters=config_overrides
		MaxArraySize=10001
		MaxJobCount=100000
		MinJobAge=2
		NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((PORT + 1)) CPUs=$cpus State=UNKNOWN
		PartitionName=all Nodes=n1 Default=YES MaxTime=INFINITE State=UP
		${SETTINGS:-}
	END
}

serve() {
	local absent munge=(munged --foreground)
	absent=$(missing | paste -sd ,)
	[ -z "$absent" ] || die "not installed: $absent"
	[ $$ = 1 ] || die "serve has to be the first process of a PID namespace"
	mount -t proc proc /proc
	mkdir -p "$1"
	DIR=$(realpath "$1")
	configure
	# Slurm asks getaddrinfo(3) with AI_ADDRCONFIG, which finds not even 127.0.0.1 where all addresses are loopback's.
	ip address replace "$ADDRESS/32" dev lo
	munge+=(--socket="$DIR/munge/socket" --key-file="$DIR/munge/key" --pid-file="$DIR/munge/pid" --seed-file="$DIR/munge/seed")
	"${munge[@]}" >"$DIR/munge/output" 2>&1 &
	await munged "$!" "$DIR/munge/output" test -S "$DIR/munge/socket"
	export SLURM_CONF=$DIR/slurm.conf
	slurmctld -D >"$DIR/slurmctld.output" 2>&1 &
	await slurmctld "$!" "$DIR/slurmctld.output" sinfo
	slurmd -D -N n1 >"$DIR/slurmd.output" 2>&1 &
	await slurmd "$!" "$DIR/slurmd.output" node_idle
	echo ready
	wait
}

node_idle() { [ "$(sinfo --noheader --format %t)" = idle ]; }

# await NAME PID OUTPUT COMMAND... waits until the command succeeds, up to 30 s and as long as the daemon lives.
await() {
	local name=$1 pid=$2 output=$3
	shift 3
	while ! "$@" >"$DIR/awaited" 2>&1; do
		((SECONDS < 30)) || die "$name is not ready after 30 s: $(<"$output") $(<"$DIR/awaited")"
		kill -0 "$pid" 2>/dev/null || die "$name has ended: $(<"$output")"
		sleep 0.05
	done
}

# array COUNT COMMAND runs an array and returns when none of its jobs waits or runs. One that is still completing has ended: what is left is to
# clean up after it. Jobs are asked for five times a second, as by Nearmetal's side.
array() {
	local id left
	id=$(sbatch --parsable --array="1-$1" --output=/dev/null --chdir=/ --wrap "$2")
	while left=$(squeue --noheader --job "$id" --states PENDING,CONFIGURING,RUNNING --format %A) || die "squeue failed"; [ -n "$left" ]; do
		sleep 0.2
	done
}

check() {
	array "$1" "touch $DIR/proof/\$SLURM_ARRAY_TASK_ID"
	local ran
	ran=$(find "$DIR/proof" -type f | wc -l)
	[ "$ran" = "$1" ] || die "$ran of $1 jobs have run: $(tail -qn 3 "$DIR/slurmctld.log" "$DIR/slurmd.log")"
	rm -rf "$DIR/proof"
}

DIR=${2:-}
export SLURM_CONF=$DIR/slurm.conf
case "${1:-} $#" in
"missing 1") missing ;;
"serve 2") serve "$2" ;;
"many 3") array "$3" true ;;
"check 3") check "$3" ;;
*) die "usage: slurm.sh missing | serve DIR | many DIR COUNT | check DIR COUNT" ;;
esac
