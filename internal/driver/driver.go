// Package driver is the contract between a node's agent and the drivers that run members there (containers, VMs, bare metal).
//
// A driver is whole-config, idempotent and restart-safe. Every call may be repeated, and Observe finds members by looking at the host,
// never by memory. A driver must never decide anything: the config says which member runs where. Package drivertest is the conformance
// suite. Package fake is a scriptable driver that passes the suite too.
package driver

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/changedfiles/choice"
)

// ErrNotFound reports that the driver finds no such member on this host.
var ErrNotFound = errors.New("no such member on this host")

// ErrUndecided reports that a member was handed over and that this host can't know whether the member runs on the other host.
// See StateHandedOver.
var ErrUndecided = errors.New("whether the member runs on the other host is unknown")

// ErrUnfit reports that a member's memory can't resume as the named successor on this host. No further attempt can succeed.
var ErrUnfit = errors.New("its memory can't go on here")

// Member is everything a driver needs to run one member. A driver consults nothing else.
type Member struct {
	Assignment api.Assignment `json:"assignment"`
	// Networks are the networks of the assignment's ports, in the order of the ports.
	Networks []api.Network `json:"networks"`
	// Files are the generated files of the member, path below / to content: hosts, hostfile, SSH keys and so on.
	Files []File `json:"files"`
	// HomeDir is the host directory of the cluster's shared home, mounted at /home; empty: the member has a private directory there, which ends
	// with it.
	HomeDir string `json:"home_dir"`
	// Mounts are further host directories that the member has: its volumes and its layers. LayersNumber names the layers among them
	// (api.ClusterIntent.LayersNumber).
	Mounts       []Mount `json:"mounts,omitempty"`
	LayersNumber int64   `json:"layers_number,omitempty"`
	// Disks are block volumes that the member's machine has as disks.
	Disks []Disk `json:"disks,omitempty"`
	// IOLimits bound the member's I/O with its home and its mounts, for drivers that are an IOLimiter.
	IOLimits []IOLimit `json:"io_limits,omitempty"`
	// Condition is what happens to what the member sends on its cluster's own network, for drivers that are a Conditioner; nil: nothing.
	Condition *api.NetworkCondition `json:"condition,omitempty"`
	// ControlDir is a host directory that the agent owns, mounted read-only at /run/nearmetal. The member agent connects to the
	// agent's socket agent.sock there.
	ControlDir string `json:"control_dir"`
	// GPUServer is the server of the member's remote GPUs; nil: it has none. The member's programs call it by front ends, which its driver gives it.
	GPUServer *GPUServer `json:"gpu_server,omitempty"`
	// Boot names the boot of the member that was requested last; empty: the first boot. A driver stores it in its record of a running
	// member.
	Boot string `json:"boot,omitempty"`
	// User is the unprivileged user of the member. This user owns the shared home and runs the jobs.
	User User `json:"user"`
}

// GPUServer is a server of remote GPUs, as its member's driver knows it.
type GPUServer struct {
	// ControlDir is the server's control directory, where the server is on the member's host; empty: it is on another.
	ControlDir string `json:"control_dir,omitempty"`
	// ID is the assignment of the server.
	ID string `json:"id"`
	// Node is where it runs.
	Node string `json:"node"`
}

// GPUMeter is the ability to tell what the servers of remote GPUs on this host do.
type GPUMeter interface {
	// ServedGPUs returns the servers that were started and whose numbers can be read.
	ServedGPUs() []ServedGPU
}

// ServedGPU is a server of remote GPUs on this host.
type ServedGPU struct {
	// ID is its assignment, Devices are the IDs of the GPUs that it serves.
	ID      string
	Devices []string
	// CPUSeconds is what its processes have used of the processor, CPUs how many CPUs it may use.
	CPUSeconds float64
	CPUs       int
	// Service is what it says that it did.
	Service api.GPUService
}

// Mount is a host directory that a member has at a path of its own. What is in it has the host's IDs that the cluster's user namespaces have.
type Mount struct {
	Source   string `json:"source"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Disk is a block volume that a member's machine has.
type Disk struct {
	// Name is the serial number by which the machine knows the disk, of which it sees the first 20 characters.
	Name string `json:"name"`
	// Path is where the machine has the file system of the disk.
	Path string `json:"path"`
	// Socket is a Unix socket of the host, at which the disk is served by NBD to the first of the cluster's user IDs. What serves it may start anew, at
	// a socket of the same name in the same directory.
	Socket   string `json:"socket"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// IOLimit bounds what a member reads from the file system of a host directory in a second, and what it writes to it.
type IOLimit struct {
	Source         string `json:"source"`
	BytesPerSecond int64  `json:"bytes_per_second"`
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
	StateAbsent   State = "absent"   // nothing of the member is on this host
	StatePrepared State = "prepared" // parts of the member are on this host, and the member does not run (also: debris of a crash)
	StateRunning  State = "running"
	StatePaused   State = "paused" // frozen: alive, but given no CPU time
	StateExited   State = "exited"
	StateSaved    State = "saved" // on disk with its memory; no process of the member runs
	// StateHandedOver means that the member was sent to another host and may run there. On this host the member stands still with its
	// memory. Resume does not apply to such a member; Mover.TakeBack and Clean do.
	StateHandedOver State = "handed-over"
)

// Observation is one member that a driver found on the host.
type Observation struct {
	// ID is the assignment's ID.
	ID    string
	State State
	// PID is the member's first process on the host while it runs, else 0.
	PID int
	// ExitCode is set when State is exited and the code is known: the code, or 128 + N when signal N ended it.
	ExitCode *int
	// Message explains why the member is in this state; empty when the member runs.
	Message string
	// StateBytes is the size of the state of a saved member; 0 for others.
	StateBytes int64
	// Holds is set for a saved member whose functions of adapters are not released yet. Save releases them.
	Holds bool
	// Member is the Member that Start received, without its Files; nil when the host has no record of it (debris).
	Member *Member
}

// Driver runs members of one stack. Calls for different members may be concurrent; calls for one member never are.
type Driver interface {
	Stack() api.Stack
	// Check reports whether this host can run the stack: what is missing and what to do, one problem per line.
	Check(ctx context.Context) api.StackCheck
	// Start prepares and starts the member. The driver attaches the member's ports through its fabric.Attacher. Start is idempotent: a
	// running member is not touched. On error nothing of the member runs, and Clean removes the debris.
	Start(ctx context.Context, m Member) error
	// Update brings the generated files of a running member up to m.Files (names and hostfile change when a cluster does).
	Update(ctx context.Context, m Member) error
	// Observe returns every member of this driver found on the host, debris included.
	Observe(ctx context.Context) ([]Observation, error)
	// Wait returns when the member's first process has ended, also after a restart of the agent. It returns ErrNotFound when the member
	// is absent.
	Wait(ctx context.Context, id string) (Observation, error)
	// Stop requests an orderly shutdown and ends the member by force once grace has passed. A driver may wait longer where an orderly
	// shutdown takes longer. A grace of 0 ends the member by force at once. Stopping a member that does not run is no error.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Clean removes everything that the member left on the host and verifies the removal by looking. Nil means that nothing is left.
	Clean(ctx context.Context, id string) error
}

// Pauser is the ability to freeze members in place. Both calls are idempotent and return once the new state has been read back.
type Pauser interface {
	// Pause freezes every process of the member. The member keeps all resources that it holds.
	Pause(ctx context.Context, id string) error
	// Resume continues a frozen member.
	Resume(ctx context.Context, id string) error
}

// Rebooter is the ability to boot a member again in place. The member keeps its ID, its ports and its private disk.
type Rebooter interface {
	// Reboot shuts the member down in an orderly way within grace and by force afterwards, and starts it as m. It is idempotent: a member that
	// runs the boot m.Boot is not touched. An exited member is started. On error the member may run its last boot, or nothing runs and
	// Reboot may be repeated. Clean removes debris without a record. Reboot returns ErrNotFound when the member is absent.
	Reboot(ctx context.Context, m Member, grace time.Duration) error
}

// ErrNeedsReboot reports that a running member can't take all of its new size. It takes the size when it boots again.
var ErrNeedsReboot = errors.New("it takes effect when the member reboots")

// Resizer is the ability to change the cores, the memory and the disk of a member in place. A member boots with those of its assignment.
type Resizer interface {
	// Resize gives the running or paused member the size of m's assignment, as far as the member can take it while it runs. On nil the member has
	// all of it, and its record names the size. It returns ErrNeedsReboot when the rest needs a reboot. On any error the record names the
	// former size. Resize is idempotent. It returns ErrNotFound when the member is absent.
	Resize(ctx context.Context, m Member) error
}

// PartCarrier is the ability to carry parts. A part is what a member on another node holds on this node, or what other executors must
// prove clean as well. A part runs no process of the member. Observe, Stop and Clean treat a part like a member.
type PartCarrier interface {
	// StartPart makes the devices and ports of a part ready for its member. The part is running once they are ready. StartPart is
	// idempotent. On error nothing runs, and Clean removes the debris.
	StartPart(ctx context.Context, m Member) error
}

// ErrSpeaks reports that an agent in the member reports the member's readiness itself.
var ErrSpeaks = errors.New("the member reports its own readiness")

// Prober is the ability to run members without an agent inside. Such a member can't report its own readiness.
type Prober interface {
	// AwaitReady returns nil once the running member has answered the probe of its environment. It returns the error of ctx, or an error
	// that says that the probe did not succeed in time. It returns ErrSpeaks for a member with an agent.
	AwaitReady(ctx context.Context, id string) error
}

// Mender is the ability to repair a running member's connection to its network after something on the host broke it. Mend is
// idempotent. An error names what Mend can't repair.
type Mender interface {
	Mend(ctx context.Context, id string) error
}

// PortExaminer is the ability to see that a running member lacks a port where the host has all of it: in the member itself. What it finds is
// repaired by Mend.
type PortExaminer interface {
	// Portless returns the running members that lack ports, by ID, with what each lacks.
	Portless(ctx context.Context) (map[string]string, error)
}

// MemoryAccountant is the ability to report that a running member ran out of the memory that it may use.
type MemoryAccountant interface {
	// OutOfMemory returns how many processes of the member the kernel has ended for want of memory since the member was started.
	OutOfMemory(id string) (kills int, err error)
}

// SlowStarter is the ability to report how long a start may take, for stacks whose members start slowly.
type SlowStarter interface {
	// StartTime returns the time limit of a Start on this host. A member that ends during the start is noticed at once.
	StartTime() time.Duration
}

// Examiner is the ability to see from outside that a running member hangs. A member whose kernel stands still can't report that itself.
type Examiner interface {
	// Hung returns the running members that hang, by ID, with the evidence for each. A member that hangs does so until it is stopped.
	Hung(ctx context.Context) (map[string]string, error)
}

// Dialer is the ability to connect to a member's TCP ports from its host, past the rules that keep hosts out of tenants' networks.
type Dialer interface {
	Dial(ctx context.Context, id string, port int) (net.Conn, error)
}

// LoopbackListener is the ability to serve a member something on its own loopback, which nobody else reaches.
type LoopbackListener interface {
	// ListenInside listens at a port of 127.0.0.1 in a running member's network. The listener, and what it has accepted, must be closed before Clean: they
	// keep the member's network alive. ListenInside returns ErrNotFound when the member is absent.
	ListenInside(ctx context.Context, id string, port int) (net.Listener, error)
}

// Saver is the ability to save a running or paused member to disk with its memory, and to resume the member from there. A saved member
// survives restarts of agent and host. Start refuses a saved member, Stop leaves it saved, Wait returns at once, and Clean removes it.
// All calls are idempotent.
type Saver interface {
	// Save writes the member's memory and devices to disk and ends the member, which is then StateSaved. It holds no functions of adapters any more. On
	// error the member is as before and nothing of the attempt is left, or the member is saved and Observation.Holds is set: Save may be repeated. Save returns ErrNotFound when the member is absent.
	Save(ctx context.Context, id string) error
	// Restore resumes the saved member from as m. The assignment of m names the saved member in From. The CPUs and directories of m may
	// differ; its shape, image, MACs and addresses are the same. Once Restore has returned nil, m runs and from is nothing but debris. Update
	// gives m its files. On error from is saved as before, and nothing of m runs. Restore returns ErrNotFound when neither is on this host. It returns ErrUnfit
	// when m differs too much.
	Restore(ctx context.Context, m Member, from string) error
	// Export writes the saved member as a stream for Import on another host. The member stays saved on this host. Export returns
	// ErrNotFound when the member is absent.
	Export(ctx context.Context, id string, to io.Writer) error
	// Import creates the saved member from on this host out of the stream that Export wrote. Restore will resume it as m. Import returns how
	// long the member had stood still when the stream began. On error nothing but debris of from is left on this host. Import returns
	// ErrUnfit when m differs too much.
	Import(ctx context.Context, m Member, from string, state io.Reader) (stood time.Duration, err error)
}

// FileSaver is the ability to write the files that a running member has changed in its root, for an environment or for the time after a pause. Whoever reads them must trust none
// of it: a member's users may have what writes them in their hands.
type FileSaver interface {
	// SaveFiles writes an archive of the changed files as a layer (package archive), without those that are never saved (package changedfiles). What it wrote
	// before it returned an error has no trailer. SaveFiles returns ErrNotFound when the member is absent.
	SaveFiles(ctx context.Context, id string, use choice.Use, out io.Writer) error
}

// Snapshotter is the ability to keep the state of a paused member beside the member. Such a state is a saved member with an ID of its own,
// from which any number of saved members can be made. All calls are idempotent.
type Snapshotter interface {
	// Snapshot writes the memory and devices of the paused member of to disk, as the saved member id. The member of stays paused. On error
	// nothing but debris of id is left. Snapshot returns ErrNotFound when of is absent.
	Snapshot(ctx context.Context, id, of string) error
	// Verify returns nil if the state of the saved member id is undamaged and Restore accepts it on this host. It returns ErrNotFound when id is
	// absent, and ErrUnfit when this host has changed too much.
	Verify(ctx context.Context, id string) error
	// LayDown makes the saved member id of the state of the saved member from, which stays saved. On error nothing but debris of id is left.
	// LayDown returns ErrNotFound when from is absent.
	LayDown(ctx context.Context, id, from string) error
}

// Mover is the ability to move a member to another host while it runs. Send on one host and Receive on the other are called at the same
// time. The two calls own conn, which joins them, until both have returned; the caller closes conn. A member never runs on both hosts.
type Mover interface {
	// Send sends the running member. On nil the member runs on the other host, and only debris is left on this host. On ErrUndecided the
	// member is StateHandedOver on this host. On any other error the member runs on this host as before. Send returns ErrNotFound when the
	// member is absent.
	Send(ctx context.Context, id string, conn net.Conn, limits MoveLimits) (MoveReport, error)
	// Receive takes the member from that Send on the other host sends, and runs it as m. The assignment of m names the sent member in
	// From. On nil m runs, and Update gives m its files. On error m will never run, and nothing but debris is left on this host.
	Receive(ctx context.Context, m Member, from string, conn net.Conn) error
	// TakeBack resumes a member that is StateHandedOver on this host. The caller must know that the member does not run on the other host
	// and never will. TakeBack is idempotent.
	TakeBack(ctx context.Context, id string) error
}

// MoveLimits are the limits of a move.
type MoveLimits struct {
	// BytesPerSecond bounds the bandwidth; 0: no limit.
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"`
	// Downtime is the longest time that the member should stand still; 0: DefaultDowntime.
	Downtime time.Duration `json:"downtime,omitempty"`
}

// DefaultDowntime is the longest time that a moving member should stand still.
const DefaultDowntime = 300 * time.Millisecond

// MoveReport is the duration and the traffic of a move.
type MoveReport struct {
	// Downtime is how long the member stood still. Total is how long the whole move took.
	Downtime time.Duration `json:"downtime"`
	Total    time.Duration `json:"total"`
	// Bytes is the number of bytes sent, in Rounds passes over the member's memory; 0 rounds: unknown.
	Bytes  int64 `json:"bytes"`
	Rounds int   `json:"rounds,omitempty"`
}

// ConsoleSharer is the ability to let people see and use a running member's serial console. The returned connection may have CloseWrite,
// which gives up the keyboard. Console returns a *serialconsole.BusyError while another user has the keyboard.
type ConsoleSharer interface {
	Console(ctx context.Context, id string, r api.ConsoleRequest) (io.ReadWriteCloser, error)
}

// DisplaySharer is the ability to connect to the display of a running member that has one, by the protocol of VNC (RFC 6143) without a password.
type DisplaySharer interface {
	Display(ctx context.Context, id string) (io.ReadWriteCloser, error)
}
