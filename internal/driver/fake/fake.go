// Package fake is a scriptable driver that carries members on a pretended host: for tests and simulation.
//
// It uses no resource of the real host and its only clock is package time's, so it runs under testing/synctest. It passes
// drivertest. Start with Host: it is what survives a driver, as a machine survives its agent.
package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Behaviour scripts what happens to a member. The zero value is a member that starts at once and runs until it is stopped.
type Behaviour struct {
	// FailStarts is how many Starts fail before one succeeds; StartError is their error, by default one that says so.
	FailStarts int
	StartError error
	// StartDelay and StopDelay are how long a successful Start, and the end after a polite stop, take.
	StartDelay, StopDelay time.Duration
	// ExitAfter is how long the first process runs before it ends by itself with ExitCode; 0: it doesn't.
	ExitAfter time.Duration
	ExitCode  int
	// Stubborn members end only by force.
	Stubborn bool
	// FailCleans, FailPauses, FailMends and so on are how many of these calls fail before one succeeds.
	FailCleans, FailPauses, FailMends                           int
	FailSaves, FailFiles, FailRestores, FailSends, FailReceives int
	// Portless is what Portless says of the running member, until Mend repairs it.
	Portless string
	// FailLetGo is how often a saved member does not let its functions of adapters go.
	FailLetGo                                      int
	FailSnapshots, FailVerifications, FailLayDowns int
	// open are the paths at which the member has files open, see HoldOpen.
	open []string
	// MoveDelay is how long Save, Restore and Send take.
	MoveDelay time.Duration
}

// Host is a pretended machine. Members go on living there when their driver is dropped.
type Host struct {
	mu         sync.Mutex
	members    map[string]*member
	behaviours map[string]*Behaviour
	nextPID    int
	calls      []string
}

type member struct {
	config driver.Member
	limited
	listened
	condition conditioned
	state     driver.State
	pid       int
	code      *int
	message   string
	ended     chan struct{} // closed at the first process' end
	// progress is how much its first process has done, see Host.Progress.
	progress int64
	savedAt  time.Time
	// holds: it is saved, and holds functions of adapters.
	holds bool
	// oomKills counts its processes that memory ran out for.
	oomKills int
	// hung is how it hangs, if it does.
	hung string
	// services are what listens in it, by port.
	services map[int]func(net.Conn)
}

// alive tells whether its first process is there, frozen or not.
func (m *member) alive() bool { return m.state == driver.StateRunning || m.state == driver.StatePaused }

// NewHost makes an empty machine.
func NewHost() *Host {
	return &Host{members: map[string]*member{}, behaviours: map[string]*Behaviour{}, nextPID: 1000}
}

// Script sets the behaviour of the member with this ID, or of every member without one of its own when id is "".
func (h *Host) Script(id string, b Behaviour) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behaviours[id] = &b
}

// End makes a running member's first process end by itself, as a crash in it would.
func (h *Host) End(id string, code int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[id]; m != nil {
		m.end(code)
	}
}

// Crash ends every process at once, as a power cut does; debris stays.
func (h *Host) Crash() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.members {
		m.end(137)
	}
}

// Progress lets every process of this machine do one more piece of work, but for the frozen ones, and returns how much that of a
// member has done.
func (h *Host) Progress(id string) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.members {
		if m.state == driver.StateRunning {
			m.progress++
		}
	}
	if m := h.members[id]; m != nil {
		return m.progress
	}
	return 0
}

// Listen makes a running member serve connections to a port.
func (h *Host) Listen(id string, port int, serve func(net.Conn)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.members[id]
	if m.services == nil {
		m.services = map[int]func(net.Conn){}
	}
	m.services[port] = serve
}

// IDs lists the members there is anything of on this machine, in order.
func (h *Host) IDs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]string, 0, len(h.members))
	for id := range h.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Member returns what a member was last started or updated with.
func (h *Host) Member(id string) (driver.Member, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, ok := h.members[id]
	if !ok {
		return driver.Member{}, false
	}
	return m.config, true
}

// Calls lists the calls all drivers of this machine got, such as "Start c1.c1-0.1", in the order they came.
func (h *Host) Calls() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// behaviour finds the member's script; callers hold the lock. The first use of the default copies it, so that counts are the
// member's own.
func (h *Host) behaviour(id string) *Behaviour {
	if b := h.behaviours[id]; b != nil {
		return b
	}
	b := Behaviour{}
	if common := h.behaviours[""]; common != nil {
		b = *common
	}
	h.behaviours[id] = &b
	return &b
}

func (m *member) end(code int) {
	if !m.alive() {
		return
	}
	m.state, m.pid, m.code = driver.StateExited, 0, &code
	m.message = fmt.Sprintf("its first process has ended with exit code %d", code)
	close(m.ended)
}

// Driver carries members on a Host. It implements driver.Driver.
type Driver struct {
	host     *Host
	attacher fabric.Attacher
	stack    api.Stack
}

// New makes a driver on a machine; several may be made, one after the other, as an agent is restarted.
func New(host *Host, attacher fabric.Attacher) *Driver {
	return &Driver{host: host, attacher: attacher, stack: api.StackContainer}
}

// Stack is what it was made for.
func (d *Driver) Stack() api.Stack { return d.stack }

// Check finds no problem.
func (d *Driver) Check(context.Context) api.StackCheck {
	return api.StackCheck{Stack: d.stack, OK: true}
}

// Start starts a member as its behaviour says.
func (d *Driver) Start(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	delay, proceed, err := d.prepare(m)
	if err != nil || !proceed {
		return err
	}
	if err := sleep(ctx, delay); err != nil {
		return fmt.Errorf("starting member %q: %w", id, err)
	}
	if err := d.attach(ctx, m); err != nil {
		return fmt.Errorf("starting member %q: attaching it to its network: %w", id, err)
	}
	d.host.launch(id)
	return nil
}

// prepare makes the member's debris-to-be; it tells not to proceed when the member already runs.
func (d *Driver) prepare(m driver.Member) (delay time.Duration, proceed bool, err error) {
	h, id := d.host, m.Assignment.ID
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "Start "+id)
	if !validID(id) {
		return 0, false, fmt.Errorf("starting member %q: not a valid member ID", id)
	}
	if old := h.members[id]; old != nil && old.alive() {
		return 0, false, nil
	} else if old != nil && old.keepsMemory() {
		return 0, false, fmt.Errorf("starting member %q: it is %s", id, old.state)
	}
	h.members[id] = &member{config: m, limited: limited{limits: m.IOLimits}, state: driver.StatePrepared, message: "prepared"}
	b := h.behaviour(id)
	if b.FailStarts == 0 {
		return b.StartDelay, true, nil
	}
	b.FailStarts--
	if b.StartError != nil {
		return 0, false, fmt.Errorf("starting member %q: %w", id, b.StartError)
	}
	return 0, false, fmt.Errorf("starting member %q: scripted to fail", id)
}

// launch lets the first process go; a member cleaned meanwhile stays away.
func (h *Host) launch(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.members[id]
	if m == nil || m.alive() {
		return
	}
	h.nextPID++
	m.state, m.pid, m.code, m.message, m.ended = driver.StateRunning, h.nextPID, nil, "", make(chan struct{})
	if b := h.behaviour(id); b.ExitAfter > 0 {
		code := b.ExitCode
		time.AfterFunc(b.ExitAfter, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			m.end(code)
		})
	}
}

// Update takes the new files.
func (d *Driver) Update(_ context.Context, m driver.Member) error {
	h, id := d.host, m.Assignment.ID
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "Update "+id)
	old := h.members[id]
	if old == nil {
		return fmt.Errorf("updating member %q: %w", id, driver.ErrNotFound)
	}
	if old.keepsMemory() {
		return fmt.Errorf("updating member %q: it is %s", id, old.state)
	}
	m.Boot = old.config.Boot // new files are no new boot, nor another size
	m.Assignment = m.Assignment.Sized(old.config.Assignment.Held())
	has := old.config // nor other volumes
	m.Mounts, m.Assignment.Volumes, m.Assignment.VolumesNumber, m.LayersNumber = has.Mounts, has.Assignment.Volumes, has.Assignment.VolumesNumber, has.LayersNumber
	old.config = m
	return nil
}

// Observe lists the members of the machine in the order of their IDs.
func (d *Driver) Observe(ctx context.Context) ([]driver.Observation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := d.host
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]driver.Observation, 0, len(h.members))
	for id, m := range h.members {
		list = append(list, m.observation(id))
	}
	slices.SortFunc(list, func(a, b driver.Observation) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

func (m *member) observation(id string) driver.Observation {
	config := m.config
	config.Files = nil
	o := driver.Observation{ID: id, State: m.state, PID: m.pid, ExitCode: m.code, Message: m.message, Member: &config}
	if m.state == driver.StateSaved {
		o.StateBytes, o.Holds = stateBytes, m.holds
	}
	return o
}

// Wait returns when the member doesn't run any more.
func (d *Driver) Wait(ctx context.Context, id string) (driver.Observation, error) {
	h := d.host
	h.mu.Lock()
	m := h.members[id]
	if m != nil && m.alive() {
		ended := m.ended
		h.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			return driver.Observation{}, fmt.Errorf("waiting for member %q: %w", id, ctx.Err())
		}
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if m == nil {
		return driver.Observation{}, fmt.Errorf("waiting for member %q: %w", id, driver.ErrNotFound)
	}
	return m.observation(id), nil
}

// Stop ends the member, politely if it lets itself.
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	h := d.host
	h.mu.Lock()
	h.calls = append(h.calls, "Stop "+id)
	m := h.members[id]
	if m == nil || !m.alive() {
		h.mu.Unlock()
		return nil
	}
	m.state = driver.StateRunning // a frozen process hears of nothing
	b := *h.behaviour(id)
	h.mu.Unlock()
	patience, code := b.StopDelay, 0
	if b.Stubborn || b.StopDelay > grace || grace == 0 {
		patience, code = grace, 137
	}
	if err := sleep(ctx, patience); err != nil {
		return fmt.Errorf("stopping member %q: %w", id, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	m.end(code)
	return nil
}

// Clean removes the member and its port.
func (d *Driver) Clean(ctx context.Context, id string) error {
	if err := d.host.tryClean(id); err != nil {
		return err
	}
	if err := d.attacher.Detach(ctx, id); err != nil {
		return fmt.Errorf("cleaning member %q: %w", id, err)
	}
	h := d.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[id]; m != nil {
		m.end(137)
	}
	delete(h.members, id)
	return nil
}

func (h *Host) tryClean(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "Clean "+id)
	return scripted("cleaning", id, &h.behaviour(id).FailCleans)
}

// scripted fails as long as a count is above zero.
func scripted(what, id string, failures *int) error {
	if *failures == 0 {
		return nil
	}
	*failures--
	return fmt.Errorf("%s member %q: %w", what, id, errScripted)
}

// Pause freezes a member.
func (d *Driver) Pause(_ context.Context, id string) error {
	return d.host.freeze("Pause", "pausing", id, driver.StatePaused)
}

// Resume lets a frozen member go on.
func (d *Driver) Resume(_ context.Context, id string) error {
	return d.host.freeze("Resume", "resuming", id, driver.StateRunning)
}

func (h *Host) freeze(call, what, id string, to driver.State) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, call+" "+id)
	m := h.members[id]
	if m == nil {
		return fmt.Errorf("%s member %q: %w", what, id, driver.ErrNotFound)
	}
	if !m.alive() {
		return fmt.Errorf("%s member %q: the member is %s", what, id, m.state)
	}
	if err := scripted(what, id, &h.behaviour(id).FailPauses); err != nil {
		return err
	}
	m.state = to
	return nil
}

// Mend attaches the port of a running member again.
func (d *Driver) Mend(ctx context.Context, id string) error {
	m, err := d.host.mend(id)
	if err != nil {
		return err
	}
	return d.attach(ctx, m)
}

func (h *Host) mend(id string) (driver.Member, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "Mend "+id)
	m := h.members[id]
	if m == nil || m.state != driver.StateRunning {
		return driver.Member{}, fmt.Errorf("repairing member %q: %w", id, driver.ErrNotFound)
	}
	if err := scripted("mending", id, &h.behaviour(id).FailMends); err != nil {
		return m.config, err
	}
	h.behaviour(id).Portless = ""
	return m.config, nil
}

var errScripted = errors.New("scripted to fail")

func validID(id string) bool {
	return id != "" && id[0] != '.' && !strings.ContainsAny(id, "/\x00")
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var (
	_ driver.Driver = (*Driver)(nil)
	_ driver.Pauser = (*Driver)(nil)
	_ driver.Dialer = (*Driver)(nil)
	_ driver.Mender = (*Driver)(nil)
)
