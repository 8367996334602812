package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// VM carries members that can be saved and moved: it also implements driver.Saver and driver.Mover.
type VM struct{ *Driver }

// NewVM makes a driver that carries virtual machines on a machine.
func NewVM(host *Host, attacher fabric.Attacher) VM {
	return VM{&Driver{host: host, attacher: attacher, stack: api.StackVM}}
}

// stateBytes is the size of each member's state.
const stateBytes = 4096

// memory is what of a member goes with it.
type memory struct {
	Of       string `json:"of"`
	Progress int64  `json:"progress"`
	// StoodFor is how long it has stood still.
	StoodFor time.Duration `json:"stood_for,omitempty"`
}

// keepsMemory reports whether it stands still with its memory.
func (m *member) keepsMemory() bool {
	return m.state == driver.StateSaved || m.state == driver.StateHandedOver
}

// leave ends the first process in favour of what goes on elsewhere.
func (m *member) leave(to driver.State, message string) {
	if m.alive() {
		close(m.ended)
	}
	m.state, m.pid, m.message = to, 0, message
}

// Save saves a member.
func (d VM) Save(ctx context.Context, id string) error {
	if err := d.save(ctx, id); err != nil {
		return fmt.Errorf("saving member %q: %w", id, err)
	}
	return nil
}

func (d VM) save(ctx context.Context, id string) error {
	delay, err := d.host.called("Save", id, func(b *Behaviour) *int { return &b.FailSaves })
	if err == nil {
		err = sleep(ctx, delay)
	}
	if err != nil {
		return err
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	m := d.host.members[id]
	switch {
	case m == nil:
		return driver.ErrNotFound
	case m.state == driver.StateSaved:
		return d.host.letGo(id, m)
	case !m.alive():
		return fmt.Errorf("the member is %s", m.state)
	}
	m.leave(driver.StateSaved, "saved with its memory")
	m.savedAt = time.Now()
	return d.host.letGo(id, m)
}

// letGo lets a saved member's functions go, or fails as its script says.
func (h *Host) letGo(id string, m *member) error {
	b := h.behaviour(id)
	if m.holds = b.FailLetGo > 0; m.holds {
		b.FailLetGo--
		return errScripted
	}
	return nil
}

// called takes note of a call and fails it as its member's script says.
func (h *Host) called(call, id string, failures func(*Behaviour) *int) (delay time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, call+" "+id)
	if !validID(id) {
		return 0, fmt.Errorf("not a valid member ID")
	}
	b := h.behaviour(id)
	if n := failures(b); *n > 0 {
		*n--
		return 0, errScripted
	}
	return b.MoveDelay, nil
}

// Restore lets a saved member go on as another.
func (d VM) Restore(ctx context.Context, m driver.Member, from string) error {
	if err := d.restore(ctx, m, from); err != nil {
		return fmt.Errorf("restoring member %q as %q: %w", from, m.Assignment.ID, err)
	}
	return nil
}

func (d VM) restore(ctx context.Context, m driver.Member, from string) error {
	id := m.Assignment.ID
	delay, err := d.host.called("Restore", id, func(b *Behaviour) *int { return &b.FailRestores })
	if err != nil {
		return err
	}
	if err := succeeds(m, from); err != nil {
		return err
	}
	there, err := d.host.restored(m, from)
	if there || err != nil {
		return err
	}
	if err := errors.Join(sleep(ctx, delay), d.attach(ctx, m)); err != nil {
		return err
	}
	d.host.mu.Lock()
	saved := d.host.members[from]
	if saved == nil || saved.state != driver.StateSaved {
		d.host.mu.Unlock()
		return fmt.Errorf("member %q is not saved any more", from)
	}
	saved.leave(driver.StatePrepared, "restored as "+id)
	progress := saved.progress
	d.host.mu.Unlock()
	d.host.goOn(id, progress)
	return nil
}

// succeeds refuses a member that does not say whom it succeeds.
func succeeds(m driver.Member, from string) error {
	if m.Assignment.From != from || from == "" || from == m.Assignment.ID {
		return fmt.Errorf("its assignment succeeds %q", m.Assignment.From)
	}
	return nil
}

// restored reports whether a member runs already that is restored from another; else it makes the debris of it.
func (h *Host) restored(m driver.Member, from string) (there bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := m.Assignment.ID
	if now := h.members[id]; now != nil && now.alive() {
		now.state = driver.StateRunning
		return true, nil
	}
	saved := h.members[from]
	switch {
	case saved == nil:
		return false, driver.ErrNotFound
	case saved.state != driver.StateSaved:
		return false, fmt.Errorf("it is %s", saved.state)
	}
	h.members[id] = &member{config: m, state: driver.StatePrepared, message: "prepared"}
	return false, nil
}

// goOn lets a member's first process go on where another's was.
func (h *Host) goOn(id string, progress int64) {
	h.launch(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[id]; m != nil {
		m.progress = progress
	}
}

// Export writes a saved member.
func (d VM) Export(_ context.Context, id string, to io.Writer) error {
	d.host.mu.Lock()
	m := d.host.members[id]
	d.host.calls = append(d.host.calls, "Export "+id)
	var err error
	var state memory
	switch {
	case m == nil:
		err = driver.ErrNotFound
	case m.state != driver.StateSaved:
		err = fmt.Errorf("it is %s", m.state)
	default:
		state = memory{Of: id, Progress: m.progress, StoodFor: time.Since(m.savedAt)}
	}
	d.host.mu.Unlock()
	if err == nil {
		err = json.NewEncoder(to).Encode(state)
	}
	if err != nil {
		return fmt.Errorf("exporting member %q: %w", id, err)
	}
	return nil
}

// Import makes a saved member of what Export wrote.
func (d VM) Import(_ context.Context, m driver.Member, from string, state io.Reader) (time.Duration, error) {
	var got memory
	err := succeeds(m, from)
	if err == nil {
		err = json.NewDecoder(state).Decode(&got)
	}
	if err == nil && got.Of != from {
		err = fmt.Errorf("the stream is of member %q", got.Of)
	}
	h := d.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "Import "+from)
	switch old := h.members[from]; {
	case err != nil:
	case old != nil && old.state == driver.StateSaved:
		return time.Since(old.savedAt), nil
	case old != nil && old.state != driver.StatePrepared:
		err = fmt.Errorf("it is %s here", old.state)
	default:
		config := m
		config.Assignment.ID, config.Assignment.From = from, ""
		h.members[from] = &member{config: config, state: driver.StateSaved, message: "saved with its memory", progress: got.Progress}
		h.members[from].savedAt = time.Now().Add(-got.StoodFor)
	}
	if err != nil {
		return 0, fmt.Errorf("importing member %q: %w", from, err)
	}
	return got.StoodFor, nil
}

// step is what the two ends of a move say to each other, in this order: memory (Send), ready (Receive), go (Send), runs (Receive).
type step struct {
	Say    string `json:"say"`
	Memory memory `json:"memory,omitzero"`
}

// talk is one end of a move's connection.
type talk struct {
	in  *json.Decoder
	out *json.Encoder
}

func talkOver(ctx context.Context, conn net.Conn) (talk, func() bool) {
	return talk{json.NewDecoder(conn), json.NewEncoder(conn)}, context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}

func (t talk) hear(word string) (step, error) {
	var s step
	if err := t.in.Decode(&s); err != nil {
		return s, fmt.Errorf("waiting for the other host to be at %q: %w", word, err)
	}
	if s.Say != word {
		return s, fmt.Errorf("the other host says %q, not %q", s.Say, word)
	}
	return s, nil
}

// Send sends a running member.
func (d VM) Send(ctx context.Context, id string, conn net.Conn, _ driver.MoveLimits) (driver.MoveReport, error) {
	report, err := d.send(ctx, id, conn)
	if err != nil {
		return report, fmt.Errorf("sending member %q: %w", id, err)
	}
	return report, nil
}

func (d VM) send(ctx context.Context, id string, conn net.Conn) (report driver.MoveReport, err error) {
	began := time.Now()
	delay, err := d.host.called("Send", id, func(b *Behaviour) *int { return &b.FailSends })
	if err != nil {
		return report, err
	}
	peer, stop := talkOver(ctx, conn)
	defer stop()
	if err := d.host.sendable(id); err != nil {
		return report, err
	}
	if err := errors.Join(peer.out.Encode(step{Say: "memory", Memory: memory{Of: id}}), sleep(ctx, delay)); err != nil {
		return report, err
	}
	if _, err := peer.hear("ready"); err != nil {
		return report, err
	}
	progress, err := d.host.handOver(id)
	if err != nil {
		return report, err
	}
	if err := peer.out.Encode(step{Say: "go", Memory: memory{Of: id, Progress: progress}}); err != nil {
		return report, errors.Join(driver.ErrUndecided, err)
	}
	if _, err := peer.hear("runs"); err != nil {
		return report, errors.Join(driver.ErrUndecided, err)
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	if m := d.host.members[id]; m != nil {
		m.leave(driver.StatePrepared, "moved to another host")
	}
	return driver.MoveReport{Total: time.Since(began), Bytes: 1}, nil
}

func (h *Host) sendable(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m := h.members[id]; {
	case m == nil:
		return driver.ErrNotFound
	case m.state != driver.StateRunning:
		return fmt.Errorf("the member is %s", m.state)
	}
	return nil
}

func (h *Host) handOver(id string) (progress int64, err error) {
	if err := h.sendable(id); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.members[id]
	m.leave(driver.StateHandedOver, "sent to another host; whether it runs there is unknown here")
	return m.progress, nil
}

// Receive takes a member that another host sends.
func (d VM) Receive(ctx context.Context, m driver.Member, from string, conn net.Conn) error {
	if err := d.receive(ctx, m, from, conn); err != nil {
		return fmt.Errorf("receiving member %q as %q: %w", from, m.Assignment.ID, err)
	}
	return nil
}

func (d VM) receive(ctx context.Context, m driver.Member, from string, conn net.Conn) error {
	id := m.Assignment.ID
	if _, err := d.host.called("Receive", id, func(b *Behaviour) *int { return &b.FailReceives }); err != nil {
		return err
	}
	if err := succeeds(m, from); err != nil {
		return err
	}
	if err := d.host.receivable(m); err != nil {
		return err
	}
	peer, stop := talkOver(ctx, conn)
	defer stop()
	if said, err := peer.hear("memory"); err != nil || said.Memory.Of != from {
		return errors.Join(err, fmt.Errorf("the other host sends member %q", said.Memory.Of))
	}
	if err := d.attach(ctx, m); err != nil {
		return err
	}
	if err := peer.out.Encode(step{Say: "ready"}); err != nil {
		return err
	}
	said, err := peer.hear("go")
	if err != nil {
		return err
	}
	d.host.goOn(id, said.Memory.Progress)
	_ = peer.out.Encode(step{Say: "runs"}) // it runs, whether the other host hears of it or not
	return nil
}

// receivable makes the debris of a member that is on its way.
func (h *Host) receivable(m driver.Member) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := m.Assignment.ID
	if now := h.members[id]; now != nil && now.state != driver.StatePrepared {
		return fmt.Errorf("it is %s here already", now.state)
	}
	h.members[id] = &member{config: m, state: driver.StatePrepared, message: "on its way from another host"}
	return nil
}

// TakeBack lets a member go on that was handed over in vain.
func (d VM) TakeBack(_ context.Context, id string) error {
	if _, err := d.host.called("TakeBack", id, func(*Behaviour) *int { return new(int) }); err != nil {
		return fmt.Errorf("taking member %q back: %w", id, err)
	}
	if done, err := d.host.takable(id); done || err != nil {
		return err
	}
	d.host.mu.Lock()
	progress := d.host.members[id].progress
	d.host.mu.Unlock()
	d.host.goOn(id, progress)
	return nil
}

func (h *Host) takable(id string) (done bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m := h.members[id]; {
	case m == nil:
		return false, fmt.Errorf("taking member %q back: %w", id, driver.ErrNotFound)
	case m.alive():
		return true, nil
	case m.state != driver.StateHandedOver:
		return false, fmt.Errorf("taking member %q back: it is %s", id, m.state)
	}
	return false, nil
}

var (
	_ driver.Snapshotter = VM{}
	_ driver.Saver       = VM{}
	_ driver.Mover       = VM{}
)
