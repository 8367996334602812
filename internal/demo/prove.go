package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/hostsnapshot"
)

const (
	// settleWindow is how long things may take to vanish by themselves after the tour has ended; the kernel removes network
	// namespaces in the background.
	settleWindow = 10 * time.Second
	// endWindow is how long an interrupted tour may take to clean up.
	endWindow = time.Minute
)

// prove takes the snapshots around the tour.
func prove(ctx context.Context, opts Options, report files, n *narrator) error {
	n.say("nearmetal demo: the life of a cluster on this machine, and how close it comes to the bare machine")
	// Descent is the evidence: whatever the tour makes, however orphaned, stays below this process until it is gone.
	if err := hostsnapshot.AdoptOrphans(); err != nil {
		return err
	}
	own, former, err := settleIn()
	if err != nil {
		return err
	}
	look := hostsnapshot.Options{Ignore: onPurpose(opts, report), FileRoots: fileRoots(), Group: own}
	before, err := hostsnapshot.Take(ctx, look)
	if err != nil {
		return err
	}
	n.say("inspected the whole host: %s (%.1f s)", before.Counts(), before.Took.Seconds())

	tourErr := errors.Join(runTour(ctx, n), giveBack(opts, report, own, former))

	// The proof is owed after a failure and an interrupt, too.
	after, differences, err := before.Settle(context.WithoutCancel(ctx), look, settleWindow)
	if err != nil {
		return errors.Join(tourErr, err)
	}
	err = judgement(n, before, after, differences)
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return errors.Join(tourErr, err)
}

// fileRoots are the default ones and where this process's temporary files go.
func fileRoots() []string {
	roots := slices.Clone(hostsnapshot.DefaultFileRoots[:])
	for _, root := range roots {
		if os.TempDir() == root || strings.HasPrefix(os.TempDir(), root+"/") {
			return roots
		}
	}
	return append(roots, os.TempDir())
}

// giveBack returns what the demo leaves on purpose to the group of the caller.
func giveBack(opts Options, report files, own, former uint32) error {
	if own == 0 {
		return nil
	}
	var err error
	for _, path := range []string{report.html, report.json, opts.StateDir} {
		if path != "" {
			err = errors.Join(err, hostsnapshot.ReturnToGroup(path, own, former))
		}
	}
	return err
}

// onPurpose tells what the demo leaves because it was asked to: its state, its report, and what its own output was sent to.
func onPurpose(opts Options, report files) func(hostsnapshot.Kind, string) bool {
	outputs := map[string]bool{report.html: true, report.json: true}
	for _, fd := range []string{"1", "2"} {
		if path, err := os.Readlink("/proc/self/fd/" + fd); err == nil {
			outputs[path] = true
		}
	}
	return func(kind hostsnapshot.Kind, key string) bool {
		if kind != hostsnapshot.File {
			return false
		}
		kept := opts.StateDir != "" && (key == opts.StateDir || strings.HasPrefix(key, opts.StateDir+"/"))
		return kept || outputs[key]
	}
}

// judgement says what is left.
func judgement(n *narrator, before, after hostsnapshot.Snapshot, differences []hostsnapshot.Difference) error {
	const most = 30
	left := hostsnapshot.Counting(differences)
	n.say("inspected the whole host again: %s", after.Counts())
	for _, note := range after.Notes {
		n.show("note: " + note)
	}
	n.mention(differences, hostsnapshot.Gone, "existed before and is gone; check whether it should have stayed")
	n.mention(differences, hostsnapshot.Others, "belongs to processes that do not descend from this one")
	n.mention(differences, hostsnapshot.Unknown, "can't be attributed to the demo: it lacks the demo's group ID")
	if len(left) == 0 {
		n.say("nothing of the demo is left (%d things of %d kinds compared)",
			total(before), len(hostsnapshot.Kinds))
		return nil
	}
	for i, d := range left {
		if i == most {
			n.show(fmt.Sprintf("and %d more", len(left)-most))
			break
		}
		n.show("LEFT " + d.String())
	}
	return fmt.Errorf("%w: %d differences, listed above", ErrLeft, len(left))
}

// mention says how many differences have a verdict that does not count, and shows the first.
func (n *narrator) mention(differences []hostsnapshot.Difference, verdict hostsnapshot.Verdict, what string) {
	const most = 3
	var with []hostsnapshot.Difference
	for _, d := range differences {
		if d.Verdict == verdict && d.Kind != hostsnapshot.Process {
			with = append(with, d)
		}
	}
	if len(with) == 0 {
		return
	}
	n.show(fmt.Sprintf("not counted, %d: %s, such as", len(with), what))
	for _, d := range with[:min(most, len(with))] {
		n.show("  " + d.String())
	}
}

func total(s hostsnapshot.Snapshot) int {
	sum := 0
	for _, k := range hostsnapshot.Kinds {
		sum += s.Count(k)
	}
	return sum
}

// runTour runs this program again as the tour and waits for it and for every orphan that falls to this process meanwhile.
func runTour(ctx context.Context, n *narrator) error {
	// The kernel ends the tour when the thread that started it ends (PR_SET_PDEATHSIG), so the thread is kept.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	tour, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env:   tourEnvironment(fmt.Sprintf("%s=%d", beginning, n.began.UnixMilli())),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM},
	})
	if err != nil {
		return fmt.Errorf("the tour can't be started: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { endTour(tour) })
	defer stop()
	status, err := collect(tour.Pid)
	if err != nil {
		return fmt.Errorf("the tour can't be waited for: %w", err)
	}
	switch {
	case status.Signaled():
		return fmt.Errorf("the tour was ended by %s", status.Signal())
	case status.ExitStatus() != 0:
		return errors.New("the tour failed; the error is above")
	default:
		return nil
	}
}

// endTour asks the tour to end, and forces it when it does not.
func endTour(tour *os.Process) {
	_ = tour.Signal(syscall.SIGTERM)
	timer := time.NewTimer(endWindow)
	defer timer.Stop()
	<-timer.C
	_ = tour.Kill()
}

// collect waits for a child, and takes the exit status of every other child on the way: the adopted. All children are
// collected here and nowhere else in this process while it runs.
func collect(pid int) (unix.WaitStatus, error) {
	var status unix.WaitStatus
	for {
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return status, err
		case got == pid:
			for {
				var other unix.WaitStatus
				if more, err := unix.Wait4(-1, &other, unix.WNOHANG, nil); more <= 0 && !errors.Is(err, unix.EINTR) {
					return status, nil
				}
			}
		}
	}
}
