package hostsnapshot

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Change is how a thing differs between two snapshots.
type Change string

// The changes.
const (
	Appeared Change = "appeared"
	Vanished Change = "vanished"
	Changed  Change = "changed"
)

// Verdict says what a difference means for the question "was anything left behind?".
type Verdict string

// The verdicts on a difference.
const (
	// Left: it counts. A descendant of the process that took the snapshots made it or holds it. Where that can't be seen
	// (a kind without a group, or no Options.Group), whatever is not shown to be others' counts, too.
	Left Verdict = "left"
	// Others: the kernel's records show that a process which is not a descendant of the taker holds it. Reported, not counted.
	Others Verdict = "others"
	// Unknown: it does not have the group that ours have, and nobody holds it. Reported, not counted.
	Unknown Verdict = "unknown"
	// Gone: it existed before and is not any more. Nothing is left of it, and who removed it can't be seen; reported, so that
	// people can see whether something was removed that should have stayed.
	Gone Verdict = "gone"
	// Informative: it happens by the kernel's own design and is no debris (a loaded module, a kernel thread).
	Informative Verdict = "informative"
)

// Difference is one thing that is not as it was.
type Difference struct {
	Kind    Kind
	Change  Change
	Key     string
	Detail  string
	Verdict Verdict
	// Why gives the ground for a verdict other than left.
	Why string
}

// String writes the difference as a line for people.
func (d Difference) String() string {
	line := fmt.Sprintf("%s %s: %s", d.Kind, d.Change, d.Key)
	if d.Detail != "" {
		line += " (" + d.Detail + ")"
	}
	if d.Why != "" {
		line += " [" + string(d.Verdict) + ": " + d.Why + "]"
	}
	return line
}

// Diff returns everything that differs from s to after, with a verdict on each; both must be taken by the same process.
func (s Snapshot) Diff(after Snapshot) []Difference {
	var out []Difference
	judge := newJudge(s, after)
	for _, kind := range Kinds {
		was, is := s.items[kind], after.items[kind]
		for _, key := range sortedKeys(is) {
			old, existed := was[key]
			switch {
			case !existed:
				out = append(out, judge.appeared(kind, key, is[key]))
			case old.Detail != is[key].Detail:
				out = append(out, judge.changed(kind, key, old, is[key]))
			}
		}
		for _, key := range sortedKeys(was) {
			if _, still := is[key]; !still {
				out = append(out, judge.vanished(kind, key, was[key]))
			}
		}
	}
	return out
}

// Counting returns the differences that count: those with the verdict Left.
func Counting(differences []Difference) []Difference {
	return slices.DeleteFunc(slices.Clone(differences), func(d Difference) bool { return d.Verdict != Left })
}

// Settle takes snapshots until nothing that counts differs from before or the window has passed, and returns the last one
// with its differences. What vanishes by itself within the window was in passing; what stays is left. The window is bounded
// so that a slow clean-up is a finding too.
func (s Snapshot) Settle(ctx context.Context, opts Options, window time.Duration) (Snapshot, []Difference, error) {
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	var last Snapshot
	var differences []Difference
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		// A look that has begun is finished: its own time is no part of the window.
		after, err := Take(context.WithoutCancel(ctx), opts)
		if err != nil {
			return last, differences, err
		}
		last, differences = after, s.Diff(after)
		if len(Counting(differences)) == 0 {
			return last, differences, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return last, differences, nil
		case <-timer.C:
		}
	}
}
