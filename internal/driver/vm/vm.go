// Package vm runs members as virtual machines, by a private libvirtd and QEMU. It boots an environment's kernel and initial RAM disk
// directly. The environment's root is a shared disk that nobody can write. The guest gets everything else over a virtio-serial port.
//
// The package must never remember: Observe, Wait, Stop and Clean look at the host (the machines' directories, libvirt, and QEMU's
// processes). So their answers are right after any crash, also of libvirtd. The package decides nothing and never touches anything that
// doesn't bear its names. It trusts nothing that a guest says. Start with Driver.Start in start.go. The machine as libvirt sees it is in
// domain.go, and libvirtd in daemon.go.
package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/patience"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
)

// Config is the configuration of a Driver.
type Config struct {
	// StateDir is the node agent's own directory (DIR/nodes/NODE). This driver's are vms/ below it, while there are any, and libvirt/.
	StateDir string
	// Node names the node.
	Node string
	// Attacher connects members to their networks.
	Attacher fabric.Attacher
	// GPUs gives members whole GPUs as PCI devices, and the programs by which they use remote ones; nil: the node gives none.
	GPUs GPUs
	// Images are the built environments on this node.
	Images environment.Images
	// Boot returns the boot agent's binary, the first process of guests, and Program the one that the boot agent starts: the member agent's. They are
	// always the same, and not kept: each has some megabytes.
	Boot, Program func() ([]byte, error)
	// HomeServer returns the program that is the server of homes when it is started as one (package homeserver): the member agent's, too. It needs no
	// libraries.
	HomeServer func() ([]byte, error)
	// Accelerate reports whether processors are virtualized by KVM; nil: Acceleration of this host.
	Accelerate func() error
	// InMachine reports whether the host is a virtual machine itself; nil: as the host's processors say.
	InMachine func() bool
	// SpareCPUs are those of the node that it offers to no member: machines do there what their processors do not.
	SpareCPUs []int
	// Watchdog is after how long without a sign of life a guest hangs; 0: watchdogTime.
	Watchdog time.Duration
	Logger   *slog.Logger
}

// Driver carries members as virtual machines. It implements driver.Driver.
type Driver struct {
	cfg Config
	log *slog.Logger
	// machines has one directory a member.
	machines string

	mu     sync.Mutex
	daemon *daemon // nil while there is no member
	closed bool
	// using counts the calls that use the daemon.
	using  int
	guests map[string]*guest
	// arrived are members that go on here and have not been updated since.
	arrived map[string]bool
	// consoles are those that are read.
	consoles map[string]*serialconsole.Console
	// homes are the members whose home's server is kept running.
	homes map[string]*homeKeeper
	// questions are those about what members have, which may not answer.
	questions patience.Questions
	doors     doors
	// boots is held while an initial RAM disk is made; agents is the digest of the agents' binaries, "" until it was needed.
	boots  sync.Mutex
	agents string
	models *knownModels // nil until it was asked
	// program: that of homes' servers was written by this agent.
	program bool

	lifetime context.Context // until Close
	end      context.CancelFunc
}

// New makes a driver; it looks at nothing on the host and changes nothing there until it is used (see Check).
func New(cfg Config) (*Driver, error) {
	switch {
	case !filepath.IsAbs(cfg.StateDir):
		return nil, fmt.Errorf("VM driver: the state directory must be an absolute path, not %q", cfg.StateDir)
	case cfg.Attacher == nil:
		return nil, errors.New("VM driver: the Attacher, which connects members, is missing")
	case cfg.Boot == nil || cfg.Program == nil || cfg.HomeServer == nil:
		return nil, errors.New("VM driver: the boot agent, the member agent or the server of homes is missing")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Accelerate == nil {
		cfg.Accelerate = Acceleration
	}
	if cfg.InMachine == nil {
		cfg.InMachine = inMachine
	}
	d := &Driver{
		cfg: cfg, log: cfg.Logger.With("driver", "vm", "node", cfg.Node), machines: filepath.Join(cfg.StateDir, "vms"), guests: map[string]*guest{}, arrived: map[string]bool{},
		consoles: map[string]*serialconsole.Console{}, homes: map[string]*homeKeeper{},
	}
	d.lifetime, d.end = context.WithCancel(context.Background())
	return d, nil
}

// Stack is the stack of virtual machines.
func (d *Driver) Stack() api.Stack { return api.StackVM }

// errClosed: the driver was closed meanwhile.
var errClosed = errors.New("the VM driver is closed")

// use returns the daemon, started if it does not run, and done, which the caller calls when it no longer needs it.
func (d *Driver) use(ctx context.Context) (_ *daemon, done func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, errClosed
	}
	if d.daemon != nil && !d.daemon.answers(ctx) {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		d.log.WarnContext(ctx, "libvirtd does not answer; starting it again", "said", d.daemon.said())
		d.daemon.stop()
		d.daemon = nil
	}
	if d.daemon == nil {
		if d.daemon, err = startDaemon(ctx, filepath.Join(d.cfg.StateDir, "libvirt"), d.cfg.Accelerate() == nil); err != nil {
			d.daemon = nil
			return nil, nil, err
		}
	}
	d.using++
	return d.daemon, func() { d.mu.Lock(); d.using--; d.mu.Unlock() }, nil
}

// rest stops the daemon if no member is left and nobody uses it.
func (d *Driver) rest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.daemon == nil || d.using > 0 || os.Remove(d.machines) != nil && !isMissing(d.machines) {
		return
	}
	d.daemon.stop()
	d.daemon = nil
}

func isMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Close ends libvirtd and all calls; the machines go on.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.end()
	for id, g := range d.guests {
		g.close()
		delete(d.guests, id)
	}
	for id, c := range d.consoles {
		c.Close()
		delete(d.consoles, id)
	}
	for id, k := range d.homes { // the servers go on
		k.end()
		delete(d.homes, id)
	}
	if d.daemon != nil {
		d.daemon.stop()
		d.daemon = nil
	}
	return nil
}

func (d *Driver) dir(id string) string        { return filepath.Join(d.machines, id) }
func (d *Driver) path(id, name string) string { return filepath.Join(d.machines, id, name) }

// domainUUID is the identity of a member's machine, whose name is the member's ID: the state directory is in it, so that no other installation on
// this host has the same.
func (d *Driver) domainUUID(id string) [16]byte {
	sum := sha256.Sum256([]byte(d.cfg.StateDir + "\x00" + id))
	var uuid [16]byte
	copy(uuid[:], sum[:])
	uuid[6], uuid[8] = uuid[6]&0x0f|0x80, uuid[8]&0x3f|0x80 // RFC 9562, section 5.8
	return uuid
}

func uuidText(u [16]byte) string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// validName reports whether a name is safe as a directory and as a machine's name.
func validName(name string) bool {
	if name == "" || len(name) > 150 || name[0] == '.' || name[0] == '-' {
		return false
	}
	for _, r := range name {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
		if !ok {
			return false
		}
	}
	return true
}

var (
	_ driver.Driver           = (*Driver)(nil)
	_ driver.Pauser           = (*Driver)(nil)
	_ driver.Dialer           = (*Driver)(nil)
	_ driver.Mender           = (*Driver)(nil)
	_ driver.PortExaminer     = (*Driver)(nil)
	_ driver.MemoryAccountant = (*Driver)(nil)
	_ driver.Examiner         = (*Driver)(nil)
	_ driver.SlowStarter      = (*Driver)(nil)
	_ driver.Saver            = (*Driver)(nil)
	_ driver.Mover            = (*Driver)(nil)
	_ driver.Snapshotter      = (*Driver)(nil)
	_ driver.Prober           = (*Driver)(nil)
	_ driver.Rebooter         = (*Driver)(nil)
	_ driver.Resizer          = (*Driver)(nil)
)
