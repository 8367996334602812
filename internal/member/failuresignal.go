package member

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// defaultFailureSignal is ignored by programs that don't know of it (signal(7)).
const defaultFailureSignal = "URG"

// failureSignal is what a job gets when a member of its cluster is lost.
func failureSignal(wanted api.Job) (syscall.Signal, error) {
	name := cmp.Or(wanted.FailureSignal, defaultFailureSignal)
	signal := unix.SignalNum("SIG" + name)
	if signal == 0 {
		return 0, fmt.Errorf("a member of the cluster was lost, but the job got no signal: %q is not a signal name", name)
	}
	return signal, nil
}

// forwarded are the signals that mpirun passes on to the ranks only when it is asked to. Some it passes on anyway (USR1, USR2, ABRT,
// ALRM, TSTP, CONT), by others it ends, and about the rest it complains and starts nothing (Open MPI 4.1, mpirun(1)).
var forwarded = []syscall.Signal{unix.SIGURG, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM, unix.SIGPROF, unix.SIGPWR}

// forwardSignal is what mpirun has to be asked to pass on so that the ranks get the failure signal, empty for nothing.
func forwardSignal(wanted api.Job) string {
	signal, err := failureSignal(wanted)
	if err != nil || !slices.Contains(forwarded, signal) {
		return ""
	}
	return unix.SignalName(signal)
}
