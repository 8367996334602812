// Package metal is the driver of members that have a whole machine: the member is the machine itself, with the environment's kernel and root.
//
// The driver runs on that machine, in an agent that carries this one member and nothing else (nearmetal agent --as-member). The member's users are root
// there, so the site takes none of the driver's word but for readiness: the provisioner ends the member by the machine's power, and cleans the machine.
// The driver must therefore never be taken for a proof that anything is gone. Start with Driver.Start.
package metal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// Config is the configuration of a driver.
type Config struct {
	// StateDir is the agent's own directory.
	StateDir string
	Attacher fabric.Attacher
	// Program is the path of the member agent's binary.
	Program string
	// Layers is the directory with the layers of the image that the machine booted, 0, 1 and so on, the lowest first.
	Layers string
	// Changes is the directory with what changed in the root since: the upper directory of an overlay, beside which there is room for files without a name.
	Changes string
	// Root is below which the member's files are: "/", or another directory in tests.
	Root string
	// Start starts a program that outlives this process, with its output in a file, and returns its PID; nil: start.
	Start func(args []string, output string) (pid int, err error)
	// SetHostname names the machine; nil: sethostname(2).
	SetHostname func(name string) error
}

// Driver implements driver.Driver.
type Driver struct {
	cfg Config
	// saving is held while changed files are written.
	saving sync.Mutex
}

var (
	_ driver.Driver  = (*Driver)(nil)
	_ driver.Dialer  = (*Driver)(nil)
	_ driver.Mender  = (*Driver)(nil)
	_ driver.Mounter = (*Driver)(nil)

	_ driver.FileSaver = (*Driver)(nil)
)

// New returns the driver.
func New(cfg Config) *Driver {
	if cfg.Start == nil {
		cfg.Start = start
	}
	if cfg.SetHostname == nil {
		cfg.SetHostname = func(name string) error { return unix.Sethostname([]byte(name)) }
	}
	return &Driver{cfg: cfg}
}

// Stack implements driver.Driver.
func (d *Driver) Stack() api.Stack { return api.StackMetal }

// Check implements driver.Driver: the machine was booted to be a member.
func (d *Driver) Check(context.Context) api.StackCheck {
	return api.StackCheck{Stack: api.StackMetal, OK: true, By: api.ExecutorProvisioner}
}

// record is what is kept of a member, for the next process of the agent.
type record struct {
	// PID is the member agent's process, Started when that began, in clock ticks since the boot (proc_pid_stat(5)): another process may get the PID.
	PID     int    `json:"pid"`
	Started string `json:"started"`
	// Member is what it was started with, its files by path only, as keys are among them.
	Member driver.Member `json:"member"`
}

func (d *Driver) recordPath() string { return filepath.Join(d.cfg.StateDir, "member.json") }

// recall reads the record; nil when there is none.
func (d *Driver) recall() (*record, error) {
	data, err := os.ReadFile(d.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read %s: %w", d.recordPath(), err)
	}
	return r, nil
}

func (d *Driver) remember(r record) error {
	files := make([]driver.File, 0, len(r.Member.Files))
	for _, f := range r.Member.Files {
		files = append(files, driver.File{Path: f.Path})
	}
	r.Member.Files = files
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durablefile.Write(d.recordPath(), data, 0o600)
}

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, m driver.Member) error {
	if err := d.start(ctx, m); err != nil {
		return fmt.Errorf("starting member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) start(ctx context.Context, m driver.Member) error {
	if !m.Assignment.Whole || m.Assignment.IsPart() {
		return errors.New("its assignment is not of a whole machine")
	}
	was, err := d.recall()
	switch {
	case err != nil:
		return err
	case was != nil && was.Member.Assignment.ID != m.Assignment.ID:
		return fmt.Errorf("the machine is member %s already; it has to boot again for another one", was.Member.Assignment.ID)
	case was != nil && was.runs():
		return nil
	}
	if err := d.cfg.SetHostname(m.Assignment.Member); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := d.attach(ctx, &m.Assignment); err != nil {
		return err
	}
	if err := d.placeFiles(nil, m.Files, m.User); err != nil {
		return err
	}
	if err := d.mountVolumes(&m); err != nil {
		return err
	}
	if err := d.makeHome(m.User); err != nil {
		return fmt.Errorf("make the user's home: %w", err)
	}
	if err := d.linkSocket(m.ControlDir); err != nil {
		return err
	}
	pid, err := d.cfg.Start([]string{d.cfg.Program}, filepath.Join(d.cfg.StateDir, "member.log"))
	if err != nil {
		return fmt.Errorf("start the member agent: %w", err)
	}
	began, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("the member agent ended at once; see %s", filepath.Join(d.cfg.StateDir, "member.log"))
	}
	return d.remember(record{PID: pid, Started: began, Member: m})
}

// attach gives the machine's interfaces the member's addresses.
func (d *Driver) attach(ctx context.Context, a *api.Assignment) error {
	for n := range a.Ports {
		if err := d.cfg.Attacher.Attach(ctx, fabric.PortOf(a, n), placeOf(&a.Ports[n])); err != nil {
			return err
		}
	}
	return nil
}

// placeOf is where a port is: on the interface with the MAC address that the claim names, or on the one that the machine booted by.
func placeOf(claim *api.PortClaim) fabric.Place {
	return fabric.Place{Kind: api.PortPF, At: strings.ToLower(claim.Device)}
}

// Mend implements driver.Mender: what the machine's users took off its interfaces is put there again.
func (d *Driver) Mend(ctx context.Context, id string) error {
	r, err := d.known(id)
	if err != nil {
		return err
	}
	if !r.runs() {
		return fmt.Errorf("member %q does not run", id)
	}
	return d.attach(ctx, &r.Member.Assignment)
}

// makeHome makes the home of the member's user, unless it is there.
func (d *Driver) makeHome(user driver.User) error {
	home := filepath.Join(d.cfg.Root, "home", user.Name)
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(home)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || stat.Uid != 0 {
		return nil // it was given to the user before, and is the user's own affair
	}
	return os.Lchown(home, int(user.UID), int(user.GID))
}

// linkSocket has the member agent find the node agent's socket where members have it.
func (d *Driver) linkSocket(controlDir string) error {
	at := filepath.Join(d.cfg.Root, memberconfig.Socket)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(filepath.Join(controlDir, filepath.Base(memberconfig.Socket)), at)
}

// Update implements driver.Driver.
func (d *Driver) Update(_ context.Context, m driver.Member) error {
	r, err := d.known(m.Assignment.ID)
	if err != nil {
		return err
	}
	if !r.runs() {
		return fmt.Errorf("member %q does not run", m.Assignment.ID)
	}
	before := r.Member.Files
	r.Member.Files = append(append([]driver.File{}, before...), m.Files...) // so that a crash leaves none unknown
	if err := d.remember(*r); err != nil {
		return err
	}
	if err := d.placeFiles(before, m.Files, m.User); err != nil {
		return fmt.Errorf("updating member %q: %w", m.Assignment.ID, err)
	}
	r.Member.Files = m.Files
	return d.remember(*r)
}

// known is the record of a member; ErrNotFound when there is none of it.
func (d *Driver) known(id string) (*record, error) {
	r, err := d.recall()
	if err != nil {
		return nil, err
	}
	if r == nil || r.Member.Assignment.ID != id {
		return nil, driver.ErrNotFound
	}
	return r, nil
}

// Observe implements driver.Driver.
func (d *Driver) Observe(context.Context) ([]driver.Observation, error) {
	r, err := d.recall()
	if err != nil || r == nil {
		return nil, err
	}
	return []driver.Observation{r.observe()}, nil
}

func (r *record) observe() driver.Observation {
	member := r.Member
	member.Files = nil
	o := driver.Observation{ID: member.Assignment.ID, State: driver.StateExited, Message: "the member agent ended", Member: &member}
	if r.runs() {
		o.State, o.Message, o.PID = driver.StateRunning, "", r.PID
	}
	return o
}

// Wait implements driver.Driver.
func (d *Driver) Wait(ctx context.Context, id string) (driver.Observation, error) {
	r, err := d.known(id)
	if err != nil {
		return driver.Observation{}, err
	}
	if err := r.await(ctx); err != nil {
		return driver.Observation{}, err
	}
	return r.observe(), nil
}

// await returns when the member agent has ended, or with the context's error.
func (r *record) await(ctx context.Context) error {
	p, err := pidfd.Open(r.PID)
	if errors.Is(err, pidfd.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if !r.runs() {
		return nil
	}
	return p.Wait(ctx)
}

// Stop implements driver.Driver: it ends the member agent, and with it the jobs and logins that the agent started. The machine runs on.
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	r, err := d.known(id)
	if errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	if err != nil || !r.runs() {
		return err
	}
	if grace > 0 {
		polite, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		if p, err := pidfd.Open(r.PID); err == nil {
			if r.runs() {
				_ = p.Signal(unix.SIGTERM)
			}
			_ = p.Wait(polite)
			p.Close()
		}
	}
	return pidfd.Kill(ctx, r.PID, r.runs)
}

// Clean implements driver.Driver: nothing is known of the member any more. What it left on the machine goes with the machine.
func (d *Driver) Clean(ctx context.Context, id string) error {
	r, err := d.known(id)
	if errors.Is(err, driver.ErrNotFound) {
		return d.cfg.Attacher.Detach(ctx, id)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(pidfd.Kill(ctx, r.PID, r.runs), d.unmountVolumes(ctx, &r.Member), d.cfg.Attacher.Detach(ctx, id)); err != nil {
		return err
	}
	if err := os.Remove(d.recordPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Dial implements driver.Dialer.
func (d *Driver) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	r, err := d.known(id)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(r.Member.Assignment.Address(), uint16(port)).String())
}

// runs reports whether the member agent's process is there.
func (r *record) runs() bool {
	began, err := startTime(r.PID)
	return err == nil && began == r.Started
}

// startTime is when a process began, in clock ticks since the boot, and an error for one that has ended (proc_pid_stat(5), fields 3 and 22; the name, in
// parentheses, may hold any character).
func startTime(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}
