package vm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// fileHanded is there once a member was handed over to another host, until that is undone.
const fileHanded = "handed.json"

// What the two sides of a move say to each other, in this order. Each word is a frame; the state between them is frames, too.
//
//	Send     Receive
//	hello             the member and its shape
//	         ready    a machine waits for its state
//	(state), end      all of it; the machine stands still at Send
//	         loaded   the machine has it, and stands still
//	go                it belongs to Receive's host now
//	         runs
//
// Up to go the member is Send's; from then on it is Receive's. If Send does not hear runs, it can't know whether go arrived.
const (
	wordHello  = "hello"
	wordReady  = "ready"
	wordEnd    = "end"
	wordLoaded = "loaded"
	wordGo     = "go"
	wordRuns   = "runs"
	// wordSorry ends a move from either side.
	wordSorry = "sorry"
)

// message is what a word comes with.
type message struct {
	Word string `json:"word"`
	// ID and Shape are hello's.
	ID    string `json:"id,omitempty"`
	Shape *shape `json:"shape,omitempty"`
	// Why is sorry's.
	Why string `json:"why,omitempty"`
}

const (
	frameState = 's'
	frameWord  = 'w'
	// maxFrame bounds a frame: pieces of the state are cut to it.
	maxFrame = 1 << 20
	// maxWhy bounds what is shown of the other side's words.
	maxWhy = 500
)

// wire is one end of a move's connection.
type wire struct{ conn net.Conn }

// over bounds a connection by ctx.
func over(ctx context.Context, conn net.Conn) (wire, func() bool) {
	return wire{conn}, context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}

func (w wire) frame(kind byte, content []byte) error {
	head := make([]byte, 5, 5+len(content))
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(len(content)))
	_, err := w.conn.Write(append(head, content...))
	return err
}

// Write sends a piece of the state.
func (w wire) Write(p []byte) (int, error) {
	done := 0
	for len(p) > 0 {
		n := min(len(p), maxFrame)
		if err := w.frame(frameState, p[:n]); err != nil {
			return done, err
		}
		p, done = p[n:], done+n
	}
	return done, nil
}

func (w wire) say(m message) error {
	content, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return w.frame(frameWord, content)
}

// sorry tells the other side why this one gives up, if it still listens.
func (w wire) sorry(why error) {
	_ = w.say(message{Word: wordSorry, Why: why.Error()})
}

// reasonPatience is for the other side to say why it hung up.
const reasonPatience = time.Second

// reason is why the other side has given up, nil where it does not say.
func (w wire) reason() error {
	_ = w.conn.SetReadDeadline(time.Now().Add(reasonPatience))
	m, err := w.hear(wordLoaded)
	if m.Word != wordSorry {
		return nil
	}
	return err
}

// read returns the next frame.
func (w wire) read() (kind byte, content []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(w.conn, head[:]); err != nil {
		return 0, nil, fmt.Errorf("the other host has hung up: %w", err)
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length > maxFrame {
		return 0, nil, fmt.Errorf("the other host sends a frame of %d bytes, the most are %d", length, maxFrame)
	}
	content = make([]byte, length)
	if _, err := io.ReadFull(w.conn, content); err != nil {
		return 0, nil, fmt.Errorf("the other host has hung up: %w", err)
	}
	return head[0], content, nil
}

// hear returns the next word, which must be this one.
func (w wire) hear(word string) (message, error) {
	kind, content, err := w.read()
	if err != nil {
		return message{}, err
	}
	return parseWord(kind, content, word)
}

func parseWord(kind byte, content []byte, word string) (m message, err error) {
	if kind != frameWord {
		return m, fmt.Errorf("the other host sends state where it should say %q", word)
	}
	if err := json.Unmarshal(content, &m); err != nil {
		return m, fmt.Errorf("the other host says what is no word: %w", err)
	}
	switch m.Word {
	case word:
		return m, nil
	case wordSorry:
		return m, fmt.Errorf("the other host gives up: %.*q", maxWhy, m.Why)
	}
	return m, fmt.Errorf("the other host says %.20q where it should say %q", m.Word, word)
}

// state copies the state to to, up to its end.
func (w wire) state(to io.Writer) error {
	for {
		kind, content, err := w.read()
		if err != nil {
			return err
		}
		if kind != frameState {
			_, err := parseWord(kind, content, wordEnd)
			return err
		}
		if _, err := to.Write(content); err != nil {
			return fmt.Errorf("the machine does not take its state: %w", err)
		}
	}
}

// Send sends a running member to the host at the other end of conn.
func (d *Driver) Send(ctx context.Context, id string, conn net.Conn, limits driver.MoveLimits) (driver.MoveReport, error) {
	w, stop := over(ctx, conn)
	defer stop()
	report, err := d.send(ctx, id, w, limits)
	if err != nil {
		err = fmt.Errorf("sending member %q: %w", id, err)
		if !errors.Is(err, driver.ErrUndecided) {
			w.sorry(err)
		}
	}
	return report, err
}

func (d *Driver) send(ctx context.Context, id string, w wire, limits driver.MoveLimits) (report driver.MoveReport, err error) {
	began := time.Now()
	if !d.has(id) {
		return report, driver.ErrNotFound
	}
	host, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return report, err
	}
	defer done()
	if seen.state != driver.StateRunning || seen.hung {
		return report, fmt.Errorf("%w: it is %s", errNotRunning, seen.state)
	}
	r, err := d.recallMovable(ctx, host, id, seen)
	if err != nil {
		return report, err
	}
	if err := surviveAll(r.Member, verbMove); err != nil {
		return report, err
	}
	if err := w.say(message{Word: wordHello, ID: id, Shape: r.Shape}); err != nil {
		return report, err
	}
	if _, err := w.hear(wordReady); err != nil {
		return report, err
	}
	if !r.Shape.tracksWrites() {
		d.log.WarnContext(ctx, "a machine stands still while it moves: this QEMU loses writes of emulated processors otherwise", "member", id, "qemu", r.Shape.QEMU)
	}
	out, err := d.leave(ctx, host, id, seen, w, r.Shape.tracksWrites(), limits)
	if err != nil {
		return report, errors.Join(w.reason(), err)
	}
	failpoint.Hit("vm.after-leave")
	if err := d.handOver(id, w); err != nil {
		return report, errors.Join(err, out.cancel(ctx))
	}
	failpoint.Hit("vm.after-handed")
	if err := w.say(message{Word: wordGo}); err != nil {
		return report, errors.Join(driver.ErrUndecided, err)
	}
	if _, err := w.hear(wordRuns); err != nil {
		return report, errors.Join(driver.ErrUndecided, err)
	}
	report = driver.MoveReport{
		Downtime: out.stoodStill(), Total: time.Since(began),
		Bytes: out.stats.RAM.Transferred, Rounds: out.stats.RAM.Rounds,
	}
	// A leader that has heard of the other ends the transfer. The machine runs there; Clean ends what is left here.
	if err := errors.Join(d.kill(ctx, host, id), d.leaveStandbys(ctx, r.Member)); err != nil {
		d.log.WarnContext(ctx, "a machine that has moved can't be ended here; it stands still", "member", id, "error", err)
	}
	return report, nil
}

// handOver says that all is sent, and gives the member up once the other side has it. On error the member is still this host's.
func (d *Driver) handOver(id string, w wire) error {
	if err := w.say(message{Word: wordEnd}); err != nil {
		return err
	}
	if _, err := w.hear(wordLoaded); err != nil {
		return err
	}
	if err := writeDurably(d.path(id, fileHanded), time.Now().UTC()); err != nil {
		return errors.Join(err, os.RemoveAll(d.path(id, fileHanded)))
	}
	return nil
}

// Receive takes a member that another host sends.
func (d *Driver) Receive(ctx context.Context, m driver.Member, from string, conn net.Conn) error {
	w, stop := over(ctx, conn)
	defer stop()
	if err := d.take(ctx, m, from, w); err != nil {
		err = fmt.Errorf("receiving member %q as %q: %w", from, m.Assignment.ID, err)
		w.sorry(err)
		return err
	}
	return nil
}

func (d *Driver) take(ctx context.Context, m driver.Member, from string, w wire) error {
	if err := checkSuccessor(m, from); err != nil {
		return err
	}
	host, seen, done, err := d.meet(ctx, m.Assignment.ID)
	if err != nil {
		return err
	}
	defer done()
	if seen.state != driver.StateAbsent && seen.state != driver.StatePrepared {
		return fmt.Errorf("it is %s here already", seen.state)
	}
	hello, err := w.hear(wordHello)
	if err != nil {
		return err
	}
	if hello.ID != from || hello.Shape == nil {
		return fmt.Errorf("the other host sends member %.150q", hello.ID)
	}
	a, err := d.fitting(ctx, host, m, *hello.Shape)
	if err != nil {
		return err
	}
	return a.arrive(ctx, func(to io.Writer) error {
		if err := w.say(message{Word: wordReady}); err != nil {
			return err
		}
		return w.state(to)
	}, func() error {
		failpoint.Hit("vm.before-go")
		if err := w.say(message{Word: wordLoaded}); err != nil {
			return err
		}
		if _, err := w.hear(wordGo); err != nil {
			return err
		}
		return writeDurably(d.path(m.Assignment.ID, fileOrigin), from)
	}, func() {
		_ = w.say(message{Word: wordRuns}) // it does, whether the other host hears of it or not
	})
}

// TakeBack lets a member go on that was handed over, and which the other host does not have.
func (d *Driver) TakeBack(ctx context.Context, id string) error {
	if err := d.takeBack(ctx, id); err != nil {
		return fmt.Errorf("taking member %q back: %w", id, err)
	}
	return nil
}

func (d *Driver) takeBack(ctx context.Context, id string) error {
	if !d.has(id) {
		return driver.ErrNotFound
	}
	host, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	switch {
	case seen.alive(): // a crash may have come between the two steps below
		return d.takenBack(ctx, host, *seen.member)
	case seen.state != driver.StateHandedOver:
		return fmt.Errorf("it is %s, not %s", seen.state, driver.StateHandedOver)
	}
	if err := errors.Join(os.Remove(d.path(id, fileHanded)), durablefile.SyncDir(d.dir(id))); err != nil {
		return err
	}
	return d.takenBack(ctx, host, *seen.member)
}

// takenBack lets a member go on that is this host's again.
func (d *Driver) takenBack(ctx context.Context, host *daemon, m driver.Member) error {
	if err := d.goOn(ctx, host, m.Assignment.ID); err != nil {
		return err
	}
	d.plugOrLater(ctx, host, m)
	return nil
}
