// Package driver is the contract between a node's agent and what carries members there (containers, VMs, bare metal).
//
// A driver is whole-config, idempotent and restart-safe: every call may be repeated, and Observe finds members by looking at
// the host, never by memory. It must never decide anything: which member runs where is in the config. drivertest is the
// conformance suite; fake is scriptable and passes it too.
package driver

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// ErrNotFound: the driver finds no such member on this host.
var ErrNotFound = errors.New("no such member on this host")

// ErrUndecided: a member was handed over, and whether it runs on the other host is unknown here; see StateHandedOver.
var ErrUndecided = errors.New("whether the member runs on the other host is unknown")

// ErrUnfit: a member's memory can't go on as the successor that was named, on this host; no further attempt can succeed.
var ErrUnfit = errors.New("its memory can't go on here")

// Member is everything a driver needs to carry one member; nothing else is consulted.
type Member struct {
	Assignment api.Assignment `json:"assignment"`
	// Networks are those of the assignment's ports, in their order.
	Networks []api.Network `json:"networks"`
	// Files are the generated files of the member, path below / to content: hosts, hostfile, SSH keys and so on.
	Files []File `json:"files"`
	// HomeDir is the host directory of the cluster's shared home, mounted at /home.
	HomeDir string `json:"home_dir"`
	// ControlDir is a host directory the agent owns, mounted read-only at /run/nearmetal; the member agent connects to its
	// socket agent.sock there.
	ControlDir string `json:"control_dir"`
	// Boot names the boot of the member that was requested last; empty: its first. A driver keeps it with what it knows of a running member.
	Boot string `json:"boot,omitempty"`
	// User is the unprivileged user of the member, who owns the shared home and runs the jobs.
	User User `json:"user"`
}

// File is a generated file.
type File struct {
	// Path is absolute in the member, such as /etc/hosts.
	Path    string `json:"path"`
	Content []byte `json:"content"`
	// Mode is the permission bits; the owner is root of the member unless OwnedByUser.
	Mode        uint32 `json:"mode"`
	OwnedByUser bool   `json:"owned_by_user,omitempty"`
}

// User is an account of a member.
type User struct {
	Name string `json:"name"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
}

// State is what a driver sees of a member.
type State string

// The states of a member on a host.
const (
	StateAbsent   State = "absent"   // nothing of it is on this host
	StatePrepared State = "prepared" // some of it is on this host, and it does not run (also: debris of a crash)
	StateRunning  State = "running"
	StatePaused   State = "paused" // frozen: alive, and given no time
	StateExited   State = "exited"
	StateSaved    State = "saved" // on disk with its memory, nothing of it runs
	// StateHandedOver is of a member that was sent to another host and may run there: here it stands still with its memory. Resume does not
	// apply to it; Mover.TakeBack and Clean do.
	StateHandedOver State = "handed-over"
)

// Observation is one member a driver found on the host.
type Observation struct {
	// ID is the assignment's ID.
	ID    string
	State State
	// PID is the member's first process on the host while it runs, else 0.
	PID int
	// ExitCode is set when State is exited and the code is known: the code, or 128 + N when signal N ended it.
	ExitCode *int
	// Message tells people why the member is in this state; empty when it runs.
	Message string
	// Member is what the member was started with, its Files left out; nil when that is not on the host (debris).
	Member *Member
}

// Driver carries members of one stack. Calls for different members may come at once, calls for one member never do.
type Driver interface {
	Stack() api.Stack
	// Check tells whether this host can carry the stack: what is missing and what to do, one problem a line.
	Check(ctx context.Context) api.StackCheck
	// Start prepares and starts the member, with its port attached through the fabric.Attacher the driver was made with. It is
	// idempotent: a member that already runs is left alone. On error nothing runs; debris is left to Clean.
	Start(ctx context.Context, m Member) error
	// Update brings the generated files of a running member up to m.Files (names and hostfile change when a cluster does).
	Update(ctx context.Context, m Member) error
	// Observe returns every member of this driver found on the host, debris included.
	Observe(ctx context.Context) ([]Observation, error)
	// Wait returns when the member's first process has ended, also after a restart of the agent; ErrNotFound when absent.
	Wait(ctx context.Context, id string) (Observation, error)
	// Stop ends the member: politely, and by force once grace has passed, or longer where an orderly shutdown takes longer. A grace of 0 ends it
	// by force at once. Stopping a member that does not run is no error.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Clean removes all the member left on the host and verifies it by looking; nil means nothing is left.
	Clean(ctx context.Context, id string) error
}

// Pauser is the ability to freeze members where they are. Both calls are idempotent and return when it is so, read back.
type Pauser interface {
	// Pause freezes every process of the member; it keeps all it holds.
	Pause(ctx context.Context, id string) error
	// Resume lets a frozen member go on.
	Resume(ctx context.Context, id string) error
}

// Rebooter is the ability to boot a member again where it is. The member keeps its ID, its ports and its private disk.
type Rebooter interface {
	// Reboot shuts the member down, politely within grace and by force afterwards, and starts it as m. It is idempotent: a member that
	// runs the boot m.Boot is not touched. An exited member is started. On error the member may run its last boot, or nothing runs and
	// Reboot may be repeated; debris without a record is for Clean. ErrNotFound when absent.
	Reboot(ctx context.Context, m Member, grace time.Duration) error
}

// PartCarrier is the ability to carry parts: what a member on another node holds on this one, or what others must prove clean besides. A
// part runs nothing of the member's. Observe, Stop and Clean treat it like a member.
type PartCarrier interface {
	// StartPart makes the devices and ports of a part ready for its member; the part is running once it is so. It is idempotent. On
	// error nothing runs; debris is left to Clean.
	StartPart(ctx context.Context, m Member) error
}

// ErrSpeaks: an agent in the member says itself that it is ready.
var ErrSpeaks = errors.New("the member reports its own readiness")

// Prober is the ability to carry members without an agent in them, which nobody in them reports ready.
type Prober interface {
	// AwaitReady returns nil once the running member has answered the probe of its environment. An error says why the member will not be
	// ready: ctx's, or that the probe did not succeed in time. ErrSpeaks for a member with an agent.
	AwaitReady(ctx context.Context, id string) error
}

// Mender is the ability to mend what connects a running member to its network, after something on the host broke it. It is
// idempotent; an error tells what can't be mended.
type Mender interface {
	Mend(ctx context.Context, id string) error
}

// MemoryAccountant is the ability to report that a running member ran out of the memory it may use.
type MemoryAccountant interface {
	// OutOfMemory returns how many processes of the member the kernel has ended for want of memory since the member was started.
	OutOfMemory(id string) (kills int, err error)
}

// SlowStarter is the ability to say how long a start may take, where what carries members is slow to come up.
type SlowStarter interface {
	// StartTime bounds a Start on this host. A member that ends meanwhile is seen at once.
	StartTime() time.Duration
}

// Examiner is the ability to see, from outside, that a running member hangs: one whose kernel stands still can't say so.
type Examiner interface {
	// Hung returns the running members that hang, by ID, with what was seen of each. A member that hangs does so until it is stopped.
	Hung(ctx context.Context) (map[string]string, error)
}

// Dialer is the ability to connect to a member's TCP ports from its host, past the rules that keep hosts out of tenants' networks.
type Dialer interface {
	Dial(ctx context.Context, id string, port int) (net.Conn, error)
}

// Saver is the ability to lay a running or paused member down on disk with its memory, and to let it go on from there. A saved member survives
// restarts of agent and host. Start refuses it, Stop leaves it saved, Wait returns for it at once, and Clean removes it. All calls are idempotent.
type Saver interface {
	// Save writes the member's memory and devices to disk and ends it; it is StateSaved then. On error the member is as before, and
	// nothing of the attempt is left. ErrNotFound when absent.
	Save(ctx context.Context, id string) error
	// Restore lets the saved member from go on as m, which runs then. Its assignment names the other one in From. It may have other CPUs and
	// directories, but has the same shape, image, MACs and addresses. Once Restore returned nil, from is nothing but debris. On error from is
	// saved as before, and nothing of m runs. ErrNotFound when neither is on this host; ErrUnfit when m differs too much.
	Restore(ctx context.Context, m Member, from string) error
	// Export writes the saved member as a stream for another host's Import; it stays saved here. ErrNotFound when absent.
	Export(ctx context.Context, id string, to io.Writer) error
	// Import makes the saved member from on this host, out of what Export wrote. m is the member that it will be restored as. On error nothing
	// but debris of from is left here. ErrUnfit as for Restore.
	Import(ctx context.Context, m Member, from string, state io.Reader) error
}

// Mover is the ability to move a member to another host while it runs. Send on one host and Receive on the other are called at the same time;
// conn joins them and is theirs until both have returned, and the caller's to close. A member never runs on both hosts.
type Mover interface {
	// Send sends the running member. On nil it is gone from here but for debris, and runs there. On an error that is ErrUndecided it is
	// StateHandedOver here; on any other it runs here as before. ErrNotFound when absent.
	Send(ctx context.Context, id string, conn net.Conn, limits MoveLimits) (MoveReport, error)
	// Receive takes the member that Send of the other host sends as from, and carries it as m, whose assignment names the other one in From. On
	// nil it runs. On error it never will: nothing but debris is left here.
	Receive(ctx context.Context, m Member, from string, conn net.Conn) error
	// TakeBack lets a member that is StateHandedOver go on here. It is for callers that know that it does not run on the other host, and never
	// will. It is idempotent.
	TakeBack(ctx context.Context, id string) error
}

// MoveLimits bounds what a move may take.
type MoveLimits struct {
	// BytesPerSecond bounds the bandwidth; 0: no limit.
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"`
	// Downtime is how long the member should stand still at most; 0: DefaultDowntime.
	Downtime time.Duration `json:"downtime,omitempty"`
}

// DefaultDowntime is how long a member that moves should stand still at most.
const DefaultDowntime = 300 * time.Millisecond

// MoveReport tells what a move took.
type MoveReport struct {
	// Downtime is how long the member stood still, Total how long the whole move took.
	Downtime time.Duration `json:"downtime"`
	Total    time.Duration `json:"total"`
	// Bytes were sent, in Rounds over its memory; 0 rounds: unknown.
	Bytes  int64 `json:"bytes"`
	Rounds int   `json:"rounds,omitempty"`
}

// ConsoleSharer is the ability to let people see and use a running member's serial console. What it returns may have CloseWrite, which leaves the
// keyboard to others. A *serialconsole.BusyError refuses to let two type at once.
type ConsoleSharer interface {
	Console(ctx context.Context, id string, r api.ConsoleRequest) (io.ReadWriteCloser, error)
}

// DisplaySharer is the ability to connect to the display of a running member that has one, by the protocol of VNC (RFC 6143) without a password.
type DisplaySharer interface {
	Display(ctx context.Context, id string) (io.ReadWriteCloser, error)
}
