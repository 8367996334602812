package sim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/fake"
)

// box is one machine as it really is.
type box struct {
	w         *world
	name, mac string
	// blind: nothing reads or cuts its power; it is woken by packets.
	blind bool
	// disk: what its node agent keeps is on a disk, and outlives its power.
	disk    bool
	machine *fake.Machine
	lives   sync.WaitGroup
	// node is what it is while it runs an environment; the driver's. life counts what it has lived through as one; finish ends the boot.
	node   *node
	life   int
	finish func(after)

	mu     sync.Mutex
	random *mathrand.Rand
	end    context.CancelFunc // of the life that goes on; nil: it is off
	runs   running
	idle   bool // it is on, and what runs there asks nobody for anything
	// changed is when it went on or off last, touched when a person did that, ailed when something was last wrong with its BMC, lied when that last
	// said off whatever was so, unheard when its cable was last out, enrolled when the site got to know it.
	changed, touched, ailed, lied, unheard, enrolled time.Time
	byItself                                         bool // it is about to go off, or to be switched, by no order to its BMC
	unplugged                                        bool // its cable is out
	silentUntil                                      time.Time
	hangs                                            bool   // its firmware hangs
	left                                             int64  // the boot whose environment left something on its disks; 0: nothing is there
	tenant                                           string // the member that had the whole machine and left something; "": none
}

// running is what a machine runs: nothing, or what it was given in the boot of a generation.
type running struct {
	uid         string // of the machine that the site took it for
	generation  int64
	environment string
	agent       bool // its node agent is there
	local       bool // its root is wholly there
}

// makeBoxes draws the machines of the site that are woken when they are asked for.
func (w *world) makeBoxes() {
	r := source(w.cfg.Seed, "boxes")
	count := r.IntN(mostBoxes + 1)
	if w.whole {
		count = mostBoxes
	}
	for i := range mostBoxes {
		blind := r.IntN(4) == 0
		if i < count && (w.cfg.Boxes == 0 || i < w.cfg.Boxes) && w.cfg.Kinds.Has(Machines) {
			b := newBox(w, i, blind)
			w.boxes, w.nodes = append(w.boxes, b), append(w.nodes, b.node)
		}
	}
}

// pause waits, and tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func newBox(w *world, i int, blind bool) *box {
	b := &box{w: w, name: fmt.Sprintf("m%d", i+1), mac: fmt.Sprintf("52:54:00:00:00:%02x", i+1), blind: blind}
	b.random = source(w.cfg.Seed, "box "+b.name)
	b.disk = source(w.cfg.Seed, "disk "+b.name).IntN(4) > 0
	b.node = newNode(w, nodeRecord(b.name, fmt.Sprintf("r%d", i%2), fmt.Sprintf("192.0.2.%d", 101+i), 2+b.random.IntN(6), int64(2+b.random.IntN(8))<<30))
	b.node.up, b.node.box = false, b
	b.machine = w.bmcs.Add(b.name, b.good())
	b.machine.OnPowered = b.powered
	return b
}

// good is how its power control behaves when nothing is wrong with it.
func (b *box) good() fake.Behaviour {
	g := fake.Behaviour{Answer: 200 * time.Millisecond, OnAfter: time.Second, OffAfter: 2 * time.Second}
	g.HostFixed = source(b.w.cfg.Seed, "host interface "+b.name).IntN(2) == 0
	if b.blind {
		g.Abilities = &power.Abilities{}
	}
	return g
}

func (b *box) between(low, high time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return span(b.random, low, high)
}

// chance is true once in n times, while things go wrong.
func (b *box) chance(k Kind, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.w.chanceOf(b.random, k, n)
}

// powered is what its power does to it.
func (b *box) powered(state api.PowerState) {
	b.w.trace("%s is %s", b.name, state)
	if state == api.PowerOff {
		b.w.checkCut(b)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.byItself = false
	b.changed, b.runs, b.idle = time.Now(), running{}, false
	b.takeNode()
	if b.end != nil {
		b.end()
		b.end = nil
	}
	if state != api.PowerOn {
		return
	}
	ctx, end := context.WithCancel(b.w.ctx)
	b.end = end
	b.lives.Go(func() { b.live(ctx) })
}

// press is a person at its button.
func (b *box) press(state api.PowerState) {
	b.mu.Lock()
	b.touched, b.byItself = time.Now(), b.machine.State() != state
	b.mu.Unlock()
	b.w.trace("a person switches %s %s", b.name, state)
	b.machine.Set(state)
}

// mend ends all that is wrong with it.
func (b *box) mend() {
	b.machine.SetBehaviour(b.good())
	b.mu.Lock()
	b.unplugged, b.hangs = false, false
	b.mu.Unlock()
	b.lookAfter()
}

// lookAfter is a person who switches a machine off that nothing else can: it stands there for nothing, or runs on though it is called off, since it
// was not heard, or from before it was taken out of the site and in again.
func (b *box) lookAfter() {
	record, _ := b.w.store.machine(b.name)
	is := b.really()
	present := record.Boot != nil && record.Boot.Generation == is.generation && record.Phase != api.MachineOff
	runsOn := is.uid != "" && (is.uid != record.UID || !present)
	if b.blind && (is.idle || runsOn) {
		b.press(api.PowerOff)
	}
}

// server is the server as this machine reaches it, nil while it does not.
func (b *box) server() *server {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unplugged {
		return nil
	}
	return b.w.up()
}

func (b *box) set(r running) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs = r
}

func (b *box) stand(ctx context.Context, why string) {
	b.w.trace("%s stands idle: %s", b.name, why)
	b.mu.Lock()
	b.idle = ctx.Err() == nil
	b.mu.Unlock()
	if b.w.isCalm() {
		b.lives.Go(b.lookAfter)
	}
	<-ctx.Done()
}

// What a machine does after its boot ended.
type after int

const (
	reboot after = iota
	powerOff
)

// live is from power on to power off.
func (b *box) live(ctx context.Context) {
	for ctx.Err() == nil {
		b.set(running{})
		if b.firmwareHangs() {
			b.w.happened("firmware hangs")
			b.stand(ctx, "its firmware hangs")
			return
		}
		if !pause(ctx, b.between(3*time.Second, 50*time.Second)) {
			return
		}
		m, token := b.netboot(ctx)
		if token == "" {
			if ctx.Err() == nil {
				b.stand(ctx, "it has nothing to boot")
			}
			return
		}
		if b.system(ctx, m, token) == powerOff && ctx.Err() == nil {
			b.w.happened("went off by itself")
			b.mu.Lock()
			b.byItself = true
			b.mu.Unlock()
			b.machine.Set(api.PowerOff)
			return
		}
	}
}

func (b *box) firmwareHangs() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	hangs := b.hangs
	b.hangs = false
	return hangs
}

// netboot is DHCP, loader, kernel and initrd: firmware tries for a minute, the loader for two. The token is empty for nothing to boot.
func (b *box) netboot(ctx context.Context) (m netboot.Machine, token string) {
	for began := time.Now(); ; {
		s := b.server()
		if s != nil {
			if known, answers := s.dhcp(b.mac); answers {
				if known == nil || known.Boot == nil && !known.Waits {
					return netboot.Machine{}, ""
				}
				m = *known
				if m.Boot == nil {
					s.asks(b.mac)
				}
				break
			}
		}
		if time.Since(began) > time.Minute || !pause(ctx, 4*time.Second) {
			return netboot.Machine{}, ""
		}
	}
	for began := time.Now(); ; {
		if s := b.server(); s != nil {
			if known, answers := s.dhcp(b.mac); answers {
				if known != nil && known.Boot == nil && known.Waits {
					began = time.Now()
					if !pause(ctx, 2*time.Second) {
						return netboot.Machine{}, ""
					}
					continue
				}
				if known == nil || known.Boot == nil {
					return netboot.Machine{}, "" // the loader's script is fetched anew each time
				}
				m = *known
				uid := m.Boot.Machine
				for _, stage := range []api.BootStage{api.StageFirmware, api.StageDHCP} {
					s.heard.Event(uid, netboot.Event{Generation: m.Boot.Generation, Stage: stage, Firmware: api.FirmwareUEFI, Architecture: "x86_64"})
				}
				token = boot.Seal(secret, boot.TokenClaims{
					MAC: b.mac, Machine: uid, Generation: m.Boot.Generation, Purpose: m.Boot.Purpose, Port: port, ExpiresAt: m.Boot.ExpiresAt,
				})
				if !pause(ctx, b.between(time.Second, 20*time.Second)) {
					return netboot.Machine{}, ""
				}
				if still := b.server(); still == s && s.ctx.Err() == nil {
					s.heard.Event(uid, netboot.Event{Generation: m.Boot.Generation, Stage: api.StageLoader})
					return m, token
				}
				continue // it went away amid the transfer
			}
		}
		if time.Since(began) > 2*time.Minute || !pause(ctx, 2*time.Second) {
			return netboot.Machine{}, ""
		}
	}
}

// talker is the boot agent: who it is, and what it says.
type talker struct {
	*box
	from    netip.Addr
	session string
}

func (t *talker) post(path string, in, out any) error {
	return t.server().post(path, t.session, t.from, in, out)
}

// system is kernel and boot agent, until they end.
func (b *box) system(ctx context.Context, m netboot.Machine, token string) after {
	generation := m.Boot.Generation
	if b.chance(Panic, 12) {
		b.w.trace("%s: its kernel panics", b.name)
		if !pause(ctx, 30*time.Second) {
			return powerOff
		}
		return reboot
	}
	if !pause(ctx, b.between(2*time.Second, 20*time.Second)) {
		return powerOff
	}
	b.w.happened("boots")
	t := &talker{box: b, from: m.Address}
	nonce := rand.Text()
	var welcome boot.Welcome
	for began, try := time.Now(), 0; ; try++ {
		err := t.post(boot.HelloPath, boot.Hello{Token: token, Nonce: nonce, MACs: []string{b.mac}, Request: rand.Text()}, &welcome)
		if err == nil {
			break
		}
		no := &refused{}
		errors.As(err, &no)
		switch no.Do {
		case "poweroff":
			return powerOff
		case "reboot":
			return reboot
		}
		if no.Status != 0 && no.Status < 500 && try >= 2 || time.Since(began) > 10*time.Minute {
			b.w.trace("%s: boot %d can't go on: %v", b.name, generation, err)
			pause(ctx, time.Minute)
			return reboot
		}
		if !pause(ctx, min(time.Second<<min(try, 4), 10*time.Second)) {
			return powerOff
		}
	}
	t.session = welcome.Session
	b.w.trace("%s: boot %d, %s", b.name, generation, welcome.Purpose)
	b.set(running{uid: m.Boot.Machine, generation: generation, environment: environmentOf(string(m.Boot.Manifest))})
	switch welcome.Purpose {
	case api.BootInspect:
		return t.inspect(ctx)
	case api.BootClean:
		return t.clean(ctx, welcome.Clean)
	}
	b.leave(generation)
	b.moveIn(welcome.Purpose, generation)
	return t.environment(ctx, generation, welcome)
}

// obey asks again and again until it is told something else than to wait; ok is false when the machine goes on.
func (t *talker) obey(ctx context.Context, path string, in any) (next after, ends bool) {
	for ctx.Err() == nil {
		var told boot.Instruction
		wait := 2 * time.Second
		if t.post(path, in, &told) == nil {
			switch told.Do {
			case "poweroff":
				return powerOff, true
			case "reboot":
				return reboot, true
			case "continue":
				return 0, false
			}
			wait = max(time.Second, time.Duration(told.RetrySeconds*float64(time.Second)))
		}
		pause(ctx, wait)
	}
	return powerOff, true
}

func (t *talker) inspect(ctx context.Context) after {
	pause(ctx, t.between(2*time.Second, time.Minute))
	next, _ := t.obey(ctx, boot.ReportPath, boot.Report{Hardware: api.Hardware{
		Architecture: "x86_64", MemoryBytes: t.node.record.Capacity.MemoryBytes, CPU: api.CPU{Threads: len(t.node.record.Capacity.Cores)},
	}})
	return next
}

// environment is the root, read while the node agent comes up, and both until the machine ends.
func (t *talker) environment(ctx context.Context, generation int64, welcome boot.Welcome) after {
	machine := ctx
	ctx, end := context.WithCancel(ctx)
	result, panics := powerOff, false
	var once sync.Once
	finish := func(what after) { once.Do(func() { result = what; end() }) }
	var parts sync.WaitGroup
	parts.Go(func() {
		for _, step := range []struct {
			takes  time.Duration
			report boot.StageReport
		}{
			{0, boot.StageReport{Stage: api.StageKernel}},
			{t.between(time.Second, 10*time.Second), boot.StageReport{Stage: api.StageRoot}},
			{t.between(5*time.Second, 90*time.Second), boot.StageReport{Stage: api.StageReady, Local: true}},
		} {
			if !pause(ctx, step.takes) {
				return
			}
			if step.report.Local {
				t.mu.Lock()
				t.runs.local = true
				t.mu.Unlock()
			}
			if next, ends := t.obey(ctx, boot.StagePath, step.report); ends {
				finish(next)
				return
			}
		}
	})
	parts.Go(func() {
		if pause(ctx, t.between(3*time.Second, 20*time.Second)) {
			t.nodeAgent(ctx, generation, welcome, finish)
		}
	})
	if t.chance(Panic, 15) {
		at := t.between(10*time.Second, 20*time.Minute)
		parts.Go(func() {
			if pause(ctx, at) && !t.w.isCalm() {
				t.w.trace("%s: its kernel panics in boot %d", t.name, generation)
				panics = true
				t.mu.Lock()
				t.runs.agent = false
				t.takeNode()
				t.mu.Unlock()
				finish(reboot)
			}
		})
	}
	<-ctx.Done()
	finish(powerOff)
	parts.Wait()
	t.mu.Lock()
	t.takeNode()
	t.mu.Unlock()
	if panics {
		pause(machine, 30*time.Second) // panic=30
	}
	return result
}
