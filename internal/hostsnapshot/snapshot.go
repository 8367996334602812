// Package hostsnapshot records what is on a host and proves that nothing was left behind: processes, namespaces, mounts,
// cgroups, nftables rules, links, addresses, routes, policy rules, forwarding switches, files, listening sockets and IPC
// objects, of the whole host and whatever their names.
//
// It must never judge by names: "nothing left" compares two snapshots, so debris under an unexpected name is found as well. A
// busy host changes meanwhile, so each difference is attributed by what the kernel records: by descent (attribute.go), and by
// the group of whatever made it (Options.Group). It must never change the host.
//
// Start with Take and Settle.
package hostsnapshot

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"
)

// Kind is a kind of thing on a host.
type Kind string

// The kinds a snapshot compares.
const (
	Process   Kind = "process"
	Namespace Kind = "namespace"
	Mount     Kind = "mount"
	Cgroup    Kind = "cgroup"
	NFTables  Kind = "nftables"
	Link      Kind = "link"
	Address   Kind = "address"
	Route     Kind = "route"
	Rule      Kind = "rule"
	Sysctl    Kind = "sysctl"
	File      Kind = "file"
	Socket    Kind = "socket"
	IPC       Kind = "ipc"
	// Module is informative only: a kernel module that was loaded stays loaded, by the kernel's own design.
	Module Kind = "module"
	Loop   Kind = "loop device"
)

// Kinds lists all kinds in the order reports show them.
var Kinds = [...]Kind{
	Process, Namespace, Mount, Cgroup, NFTables, Link, Address, Route, Rule, Sysctl, File, Socket, IPC, Loop, Module,
}

// Options say where to look. The zero value looks at the defaults.
type Options struct {
	// FileRoots are the directories whose files are compared, by path, type and size; nil means DefaultFileRoots. A root is
	// followed on its own file system only: what is mounted below it is seen as a mount.
	FileRoots []string
	// Ignore, when set, takes a thing out of both snapshots; it is for what the caller itself writes on purpose, such as the
	// report. By default nothing is ignored.
	Ignore func(kind Kind, key string) bool
	// Group is the group ID that the observed program runs with, one that nothing else on the host has: see OwnGroup. The
	// kernel records it on every file, cgroup, IPC object and tmpfs that the program's processes make. Things without it that
	// nobody shown to be ours holds are then of unknown origin. They don't count, because any program may have made them.
	// Links, addresses, routes, rules, switches and sockets carry no group. They count unless a holder shows otherwise, so
	// the taker and the program need a network namespace of their own on a host that is not quiet.
	// 0: there is no such group, and whatever is not shown to be others' counts.
	Group uint32
}

// DefaultFileRoots are the places where programs leave files.
var DefaultFileRoots = [...]string{
	"/run", "/tmp", "/var/tmp", "/dev/shm", "/etc", "/home", "/root/.ssh", "/var/lib/nearmetal", "/var/lib/containers", "/var/cache/nearmetal",
}

// ProcessID names a process uniquely: PIDs are reused, a PID with its start time is not.
type ProcessID struct {
	PID int
	// StartTicks is the start time in clock ticks after boot (proc(5), field 22 of /proc/PID/stat).
	StartTicks uint64
}

// Item is one thing found on the host.
type Item struct {
	// Detail describes the thing to people; a thing whose key stays but whose detail changes is "changed".
	Detail string
	// holders are the processes it lives through: those in a namespace or a cgroup, those with a file or socket open.
	holders []ProcessID
	// place is where in the file system it lies, if anywhere.
	place string
	// ours: it was made with Options.Group, or lies in a directory that was.
	ours bool
}

type process struct {
	id      ProcessID
	ppid    int
	zombie  bool
	kernel  bool
	command string
}

// Snapshot is what was on the host at one time.
type Snapshot struct {
	TakenAt time.Time
	// Took is how long the look itself took.
	Took  time.Duration
	items map[Kind]map[string]Item
	// processes by PID; kept apart from items for their ancestry.
	processes map[int]process
	// group is Options.Group.
	group uint32
	// taker is the process that took the snapshot, adopting tells whether it adopts the orphans among its descendants.
	taker    ProcessID
	adopting bool
	// roots are the file roots; territory is who uses the directories below them.
	roots     map[string]bool
	territory territory
	// Notes tell what could not be looked at, and why; an empty list means that everything was.
	Notes []string
}

// Take looks at the whole host. It fails only when the host can't be looked at (no /proc, not root); what a machine does not
// have (nft not installed, no IPv6) is a note in the snapshot.
func Take(ctx context.Context, opts Options) (Snapshot, error) {
	start := time.Now()
	if os.Geteuid() != 0 {
		return Snapshot{}, fmt.Errorf("a snapshot of the whole host needs root, to see every process's namespaces and the nftables rules")
	}
	s := Snapshot{TakenAt: start, items: map[Kind]map[string]Item{}, group: opts.Group}
	c := collector{snapshot: &s, opts: opts, oursDirs: map[string]bool{}}
	for _, look := range []func(context.Context) error{
		c.processes, c.namespaces, c.mounts, c.cgroups, c.nftables, c.links, c.sysctls, c.sockets, c.ipc, c.loops, c.modules, c.files,
	} {
		if err := ctx.Err(); err != nil {
			return Snapshot{}, fmt.Errorf("the snapshot of the host was interrupted: %w", err)
		}
		if err := look(ctx); err != nil {
			return Snapshot{}, err
		}
	}
	s.territory = territories(s)
	s.Took = time.Since(start)
	return s, nil
}

// Count returns how many things of a kind the snapshot holds.
func (s Snapshot) Count(kind Kind) int { return len(s.items[kind]) }

// Counts writes the number of things of each kind that were looked at: "52 processes, 9 namespaces, ...".
func (s Snapshot) Counts() string {
	parts := make([]string, 0, len(Kinds))
	for _, k := range Kinds {
		parts = append(parts, fmt.Sprintf("%d %s", s.Count(k), k.plural(s.Count(k))))
	}
	return strings.Join(parts, ", ")
}

func (k Kind) plural(n int) string {
	switch {
	case n == 1 || k == IPC || k == NFTables:
		return string(k)
	case k == Process || k == Address:
		return string(k) + "es"
	default:
		return string(k) + "s"
	}
}

func sortedKeys(items map[string]Item) []string {
	keys := make([]string, 0, len(items))
	for k := range items {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
