package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

const (
	// MaxRanks is more ranks than any cluster has cores.
	MaxRanks = 1 << 20
	MaxArgs  = 4096
	// maxJobText bounds a job's command, environment and directory. Each job that runs is kept by server, node and member.
	maxJobText = 64 << 10
)

// VariablePattern is the form of an environment variable's name (POSIX.1-2017, section 8.1, small letters too).
const VariablePattern = `^[A-Za-z_][A-Za-z0-9_]*$`

var variable = regexp.MustCompile(VariablePattern)

// CheckJob refuses a job that can't be run anywhere. The error is an *Invalid that names every problem.
func CheckJob(req api.JobRequest, src *Source) error {
	n := normalizer{src: src}
	switch {
	case len(req.Command) == 0:
		n.add("command", "", "is missing; give the program and its arguments, for example [\"hostname\"]")
	case len(req.Command) > MaxArgs:
		n.add("command", strconv.Itoa(len(req.Command)), "has %d words; at most %d are possible", len(req.Command), MaxArgs)
	case req.Command[0] == "":
		n.add("command[0]", "", "is empty; the first word is the program to run")
	}
	for i, word := range req.Command {
		if strings.ContainsRune(word, 0) {
			n.add(fmt.Sprintf("command[%d]", i), "", "holds a zero byte, which an argument can't")
		}
	}
	if req.Ranks < 0 {
		n.add("ranks", strconv.Itoa(req.Ranks), "%d is too small; give at least 1, or 0 to run once without mpirun", req.Ranks)
	} else if req.Ranks > MaxRanks {
		n.add("ranks", strconv.Itoa(req.Ranks), "%d is too large; the limit is %d", req.Ranks, MaxRanks)
	}
	names := make([]string, 0, len(req.Env))
	for name := range req.Env {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !variable.MatchString(name) {
			n.add(join("env", name), name, "%q is not the name of a variable; use letters, digits and '_'", name)
		}
		if strings.ContainsRune(req.Env[name], 0) {
			n.add(join("env", name), "", "holds a zero byte, which a variable can't")
		}
	}
	if req.Directory != "" && (!strings.HasPrefix(req.Directory, "/") || strings.ContainsRune(req.Directory, 0)) {
		n.add("directory", req.Directory, "%q is not an absolute path; begin it with '/'", req.Directory)
	}
	if text := req.TextBytes(); text > maxJobText {
		n.add("command", "", "holds %d bytes with the environment, written as JSON; at most %d are possible: put long lists and input into a file in the shared home",
			text, maxJobText)
	}
	n.failureSignal(req.FailureSignal)
	if len(n.problems) > 0 {
		return &Invalid{Problems: n.problems}
	}
	return nil
}

// FailureSignals lists the signals that a job may ask for.
func FailureSignals() []string { return slices.Clone(failureSignals) }

// failureSignals are what can tell a program that a member was lost: no signal of a fault, none that stops it.
var failureSignals = []string{
	"ABRT", "ALRM", "CONT", "HUP", "INT", "IO", "KILL", "PROF", "PWR", "QUIT", "TERM", "URG", "USR1", "USR2", "VTALRM", "WINCH",
}

func (n *normalizer) failureSignal(name string) {
	const path = "failure_signal"
	if name == "" && !n.src.Has(path) || slices.Contains(failureSignals, name) {
		return
	}
	if short := strings.TrimPrefix(strings.ToUpper(name), "SIG"); slices.Contains(failureSignals, short) {
		n.add(path, name, "%q is not a signal name; did you mean %q?", name, short)
		return
	}
	n.add(path, name, "%q is not a signal that a job can receive; use one of %s", name, strings.Join(failureSignals, ", "))
}
