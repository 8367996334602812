package hostsnapshot

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// AdoptOrphans makes this process the one that its orphaned descendants fall to (PR_SET_CHILD_SUBREAPER, prctl(2)). With it,
// descent is proof in both directions: all that this process caused descends from it until it ends, and nothing else does.
// Without it, orphans fall to PID 1 like anybody's, and count as left. The caller must collect the adopted (wait4).
func AdoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("this process can't adopt its orphaned descendants: %w", err)
	}
	return nil
}

func adopting() bool {
	var on int32
	err := prctlGet(unix.PR_GET_CHILD_SUBREAPER, &on)
	return err == nil && on != 0
}

// judge gives verdicts on differences from what both snapshots know of processes.
type judge struct {
	before, after Snapshot
	// ancestors are the PIDs from the taker up to PID 1.
	ancestors map[int]bool
}

func newJudge(before, after Snapshot) judge {
	j := judge{before: before, after: after, ancestors: map[int]bool{}}
	for pid := after.taker.PID; pid > 0 && !j.ancestors[pid]; pid = after.processes[pid].ppid {
		j.ancestors[pid] = true
	}
	return j
}

// origin is whose something is.
type origin int

const (
	unclear origin = iota
	foreign
	ours
)

// origin returns whose a process is, and why it is not ours. The chain of parents is followed in the given snapshot up to the
// first process that was there before: if that is not the taker, whatever that process did was not the taker's doing. Where
// orphans may fall without adoption, the chain proves nothing.
func (j judge) origin(in Snapshot, id ProcessID) (origin, string) {
	for pid, steps := id.PID, 0; steps < 10000; steps++ {
		p, known := in.processes[pid]
		if !known || (pid == id.PID && p.id != id) {
			return unclear, ""
		}
		if p.id == in.taker {
			return ours, ""
		}
		adopts := j.before.adopting && j.after.adopting
		old, existed := j.before.processes[pid]
		switch {
		case existed && old.id == p.id && j.ancestors[pid] && !adopts:
			return unclear, ""
		case existed && old.id == p.id && pid == id.PID:
			return foreign, fmt.Sprintf("held by PID %d, which existed before: %s", pid, p.command)
		case existed && old.id == p.id:
			return foreign, fmt.Sprintf("descends from PID %d, which existed before and is not ours: %s", pid, p.command)
		case p.ppid == 0 && adopts:
			return foreign, fmt.Sprintf("descends from PID %d, which came from another PID namespace: %s", pid, p.command)
		case p.ppid == 0:
			return unclear, ""
		}
		pid = p.ppid
	}
	return unclear, ""
}

// holdersOrigin returns whose all holders together are: ours as soon as one is, foreign only if all are.
func (j judge) holdersOrigin(in Snapshot, holders []ProcessID) (origin, string) {
	whose, why := unclear, ""
	for i, h := range holders {
		one, reason := j.origin(in, h)
		switch {
		case one == ours:
			return ours, ""
		case one == unclear || (i > 0 && whose == unclear):
			whose, why = unclear, ""
		default:
			whose, why = foreign, reason
		}
	}
	return whose, why
}

// grouped reports whether things of a kind have the group of their maker, or a place that has.
func grouped(kind Kind) bool {
	switch kind {
	case Namespace, Mount, Cgroup, File, IPC, Loop:
		return true
	default:
		return false
	}
}

// verdict says whose a thing of the second snapshot is.
func (j judge) verdict(kind Kind, item Item) (Verdict, string) {
	holders := item.holders
	if item.ours {
		// Two runs of one program share a parent of cgroups. Who made it can't remove it while the other's processes are below.
		if whose, why := j.holdersOrigin(j.after, holders); kind == Cgroup && whose == foreign {
			return Others, why
		}
		return Left, ""
	}
	if len(holders) == 0 && item.place != "" && j.after.group == 0 {
		// Nobody holds the thing itself, and nothing shows its maker. Those who use the directory it lies in are the next to ask.
		holders = j.neighbours(item.place)
	}
	whose, why := j.holdersOrigin(j.after, holders)
	switch {
	case whose == foreign:
		return Others, why
	case whose == unclear && j.after.group != 0 && grouped(kind):
		return Unknown, "its maker is unknown"
	default:
		return Left, ""
	}
}

func (j judge) appeared(kind Kind, key string, item Item) Difference {
	d := Difference{Kind: kind, Change: Appeared, Key: key, Detail: item.Detail}
	switch kind {
	case Module:
		d.Verdict, d.Why = Informative, "the kernel loads modules when they are first used and keeps them"
		return d
	case Process:
		p := j.after.processes[item.holders[0].PID]
		if p.kernel {
			d.Verdict, d.Why = Informative, "a kernel thread"
			return d
		}
		if p.zombie && p.ppid == j.after.taker.PID {
			d.Verdict, d.Why = Informative, "it has ended; this process has yet to collect its exit status"
			return d
		}
	default:
	}
	d.Verdict, d.Why = j.verdict(kind, item)
	return d
}

func (j judge) changed(kind Kind, key string, old, now Item) Difference {
	d := Difference{Kind: kind, Change: Changed, Key: key, Detail: "was " + old.Detail + ", is " + now.Detail}
	switch kind {
	case Process, Module:
		d.Verdict, d.Why = Informative, "processes and modules change on their own"
	default:
		d.Verdict, d.Why = j.verdict(kind, now)
	}
	return d
}

func (j judge) vanished(kind Kind, key string, old Item) Difference {
	d := Difference{Kind: kind, Change: Vanished, Key: key, Detail: old.Detail, Verdict: Gone, Why: "it existed before"}
	if kind == Process || kind == Module {
		d.Verdict, d.Why = Informative, "it has ended since"
		return d
	}
	for _, h := range old.holders {
		if p, still := j.after.processes[h.PID]; !still || p.id != h {
			d.Verdict, d.Why = Others, fmt.Sprintf("it was held by PID %d, which has ended since", h.PID)
			return d
		}
	}
	if whose, why := j.holdersOrigin(j.before, old.holders); whose == foreign {
		d.Verdict, d.Why = Others, why
	}
	return d
}

// territory is who uses what is in a directory: the holders of all files at or below it.
type territory map[string][]ProcessID

// territories maps every directory below the roots of the file kind to those who use something in it. Holders of a mount or
// a working directory are among them.
func territories(s Snapshot) territory {
	t := territory{}
	for path, item := range s.items[File] {
		if len(item.holders) == 0 {
			continue
		}
		for dir := path; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
			t[dir] = append(t[dir], item.holders...)
		}
	}
	return t
}

// neighbours returns the users of the closest directory around a path that anybody uses. Places that many share say nothing:
// the roots themselves are left out.
func (j judge) neighbours(path string) []ProcessID {
	for dir := path; dir != "/" && dir != "." && !j.after.roots[dir]; dir = filepath.Dir(dir) {
		if users := j.after.territory[dir]; len(users) > 0 {
			return users
		}
	}
	return nil
}
