package condition

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// Config is a link and what happens on it.
type Config struct {
	Near, Far End
	// There is from Near to Far.
	There, Back Condition
	// MTUBytes is the largest packet; 0 is 1500.
	MTUBytes int
}

// Link is a point-to-point link between two namespaces, whose packets this process forwards.
type Link struct {
	there, back *direction
	// near is where echoes are sent from, and far where to (Verify).
	near netns.Handle
	far  netip.Addr
	// ending is set, and then stop can be read, once the link ends.
	ending  *atomic.Bool
	stop    int
	running sync.WaitGroup
}

// Open makes a link. It lasts until Close, or as long as the process.
func Open(cfg Config) (*Link, error) {
	if err := errors.Join(cfg.There.Validate(), cfg.Back.Validate()); err != nil {
		return nil, err
	}
	if cfg.MTUBytes == 0 {
		cfg.MTUBytes = fullPacketBytes
	}
	near, err := cfg.Near.open(cfg.MTUBytes)
	if err != nil {
		return nil, err
	}
	far, err := cfg.Far.open(cfg.MTUBytes)
	if err != nil {
		return nil, errors.Join(err, unix.Close(near))
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(err, unix.Close(near), unix.Close(far))
	}
	began, ending := time.Now(), &atomic.Bool{}
	l := &Link{
		there: &direction{from: near, to: far, stop: stop, ending: ending, began: began}, back: &direction{from: far, to: near, stop: stop, ending: ending, began: began},
		stop: stop, ending: ending, near: cfg.Near.Space, far: cfg.Far.Address.Addr(),
	}
	if err := l.Change(cfg.There, cfg.Back); err != nil {
		return nil, errors.Join(err, unix.Close(near), unix.Close(far), unix.Close(stop))
	}
	for _, d := range []*direction{l.there, l.back} {
		l.running.Go(d.run)
	}
	return l, nil
}

// Change sets other conditions. What waits leaves as it would have, and before what comes then. Bad conditions change nothing.
func (l *Link) Change(there, back Condition) error {
	if err := errors.Join(there.Validate(), back.Validate()); err != nil {
		return err
	}
	return errors.Join(l.there.set(there), l.back.set(back))
}

// Counters are those of both directions since Open.
func (l *Link) Counters() (there, back Counters) { return l.there.counters(), l.back.counters() }

// Close takes the link away, with what waits on it. It returns what ended a direction before, if something did.
func (l *Link) Close() error {
	l.ending.Store(true)
	_, err := unix.Write(l.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	l.running.Wait()
	return errors.Join(err, l.there.failed, l.back.failed, unix.Close(l.there.from), unix.Close(l.back.from), unix.Close(l.stop))
}

// direction forwards packets one way, on a thread of its own.
type direction struct {
	from, to, stop int
	ending         *atomic.Bool
	began          time.Time
	mu             sync.Mutex // guards asked, model and count
	asked          Condition
	model          *model
	count          Counters
	// Only the thread uses what follows; failed is for others once it has ended.
	line   line
	failed error
}

func (d *direction) set(c Condition) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := offer(d.from, c); err != nil {
		return err
	}
	next := newModel(c)
	if d.model != nil {
		next.last = d.model.last
	}
	d.asked, d.model = c, next
	return nil
}

func (d *direction) condition() Condition {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

func (d *direction) counters() Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

func (d *direction) now() time.Duration { return time.Since(d.began) }

// mostAtOnce bounds how many packets are read before what is due leaves.
const mostAtOnce = 32

// run forwards until the link ends.
func (d *direction) run() {
	runtime.LockOSThread() // for good: the thread's timers are not as others'
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		d.failed = fmt.Errorf("asking for exact timers: %w", err)
		return
	}
	framed := make([]byte, headerBytes+largestPacketBytes)
	for !d.ending.Load() {
		more, err := d.receive(framed)
		d.sendDue()
		if err == nil && !more {
			err = d.wait()
		}
		if err != nil {
			d.failed = err
			return
		}
	}
}

// receive takes what has come, and reports whether there may be more.
func (d *direction) receive(framed []byte) (more bool, err error) {
	for range mostAtOnce {
		n, err := unix.Read(d.from, framed)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("reading from a TUN device: %w", err)
		case n > headerBytes:
			d.decide(framed[:n])
		}
	}
	return true, nil
}

// decide gives a packet its fate. One that need not wait leaves at once.
func (d *direction) decide(framed []byte) {
	now := d.now()
	packets, bytes := onWire(framed)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Packets += int64(packets)
	d.count.Bytes += int64(bytes)
	f := d.model.next(now, bytes)
	switch {
	case f.lost:
		d.count.Lost += int64(packets)
		return
	case f.overflowed:
		d.count.Overflowed += int64(packets)
		return
	}
	if f.corrupted {
		d.count.Corrupted++
		framed[headerBytes+f.bit/8] ^= 1 << (f.bit % 8)
	}
	if f.overtakes {
		d.count.Reordered++
	}
	d.pass(framed, now, f.at, f.overtakes)
	if f.duplicated {
		d.count.Duplicated++
		d.pass(framed, now, f.again, f.overtakes)
	}
}

// pass sends a packet that is due and before which none waits, and makes others wait. The caller holds mu.
func (d *direction) pass(framed []byte, now, at time.Duration, overtakes bool) {
	if _, waits := d.line.next(); !waits && at <= now {
		d.send(framed, now)
	} else if !d.line.put(framed, at, overtakes) {
		packets, _ := onWire(framed)
		d.count.Overflowed += int64(packets)
	}
}

// sendDue sends what is due.
func (d *direction) sendDue() {
	now := d.now()
	p, ok := d.line.next()
	if !ok || p.at > now {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for ; ok && p.at <= now; p, ok = d.line.next() {
		d.send(p.data, p.at)
		d.line.take()
	}
}

// send hands a packet that was due at a time to the kernel. The caller holds mu.
func (d *direction) send(framed []byte, due time.Duration) {
	if _, err := unix.Write(d.to, framed); err != nil {
		d.count.Refused++
		return
	}
	late := d.now() - due
	d.count.Sent++
	d.count.LateSum += late
	d.count.LateMost = max(d.count.LateMost, late)
}

// wait returns when there is something to do, or the link ends.
func (d *direction) wait() error {
	var until *unix.Timespec
	if p, ok := d.line.next(); ok {
		t := unix.NsecToTimespec(max(0, p.at-d.now()).Nanoseconds())
		until = &t
	}
	fds := []unix.PollFd{{Fd: int32(d.from), Events: unix.POLLIN}, {Fd: int32(d.stop), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(fds, until, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("waiting for packets: %w", err)
	}
	return nil
}
