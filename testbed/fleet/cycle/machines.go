package cycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/agent/agenttest"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/testbed/fleet"
)

// Machines are those of a fleet with their BMCs: whoever has the power on boots, and does what its boot is for until it is off. One that boots for a
// member runs the real node agent, which pretends the member.
type Machines struct {
	fleet *fleet.Fleet
	bmcs  *BMCs
	dir   string
	ctx   context.Context
	boots sync.WaitGroup

	mu   sync.Mutex
	ends map[int]context.CancelFunc // of those that are on
	// ended are the clients of agents that have ended.
	ended []*http.Client

	// booted counts boots by purpose, failed those that came to nothing by themselves; first is the first of these.
	members, cleanings, failed atomic.Int64
	first                      atomic.Pointer[error]
}

// Start plugs BMCs in. What the machines' agents keep is below dir, whose path is short, since sockets are in it.
func Start(ctx context.Context, f *fleet.Fleet, dir string) (*Machines, error) {
	m := &Machines{fleet: f, dir: dir, ctx: ctx, ends: map[int]context.CancelFunc{}}
	var err error
	m.bmcs, err = StartBMCs(ctx, m.powerOn, m.cut)
	return m, err
}

// Close cuts all power, and waits until nothing runs.
func (m *Machines) Close() error {
	err := m.bmcs.Close()
	m.mu.Lock()
	for _, end := range m.ends {
		end()
	}
	m.mu.Unlock()
	m.boots.Wait()
	return err
}

// Fail cuts the power of a machine, and tells nobody.
func (m *Machines) Fail(i int) {
	if m.bmcs.Set(i, false) {
		m.cut(i)
	}
}

// hangUp closes the connections of machines that are off, which a real one takes along. One whose last stream has just ended may need another call.
func (m *Machines) hangUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.ended {
		c.CloseIdleConnections()
	}
}

func (m *Machines) powerOn(i int) {
	ctx, end := context.WithCancel(m.ctx)
	m.mu.Lock()
	before := m.ends[i]
	m.ends[i] = end
	m.mu.Unlock()
	if before != nil {
		before()
	}
	m.boots.Go(func() {
		err := m.live(ctx, i)
		if ctx.Err() != nil {
			return // its power was cut
		}
		if err != nil {
			m.failed.Add(1)
			m.first.CompareAndSwap(nil, &err)
		}
		end()
		m.bmcs.Set(i, false)
	})
}

func (m *Machines) cut(i int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if end := m.ends[i]; end != nil {
		end()
	}
}

// live is a machine from power on until its system powers it off.
func (m *Machines) live(ctx context.Context, i int) error {
	stages, err := m.fleet.Machine(i).Boot(ctx)
	if err != nil {
		return err
	}
	switch stages.Welcome.Purpose {
	case api.BootMember:
		m.members.Add(1)
		return m.runAgent(ctx, stages)
	case api.BootClean:
		m.cleanings.Add(1)
	}
	return nil
}

// runAgent is the machine's node agent with its member, until it powers the machine off.
func (m *Machines) runAgent(ctx context.Context, s fleet.Stages) (err error) {
	w := s.Welcome
	dir := filepath.Join(m.dir, fmt.Sprintf("%s.%d", w.Name, w.Agent.Generation))
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := s.Identity.WriteVolatile(filepath.Join(dir, trust.IdentityName)); err != nil {
		return err
	}
	off, powerOff := context.WithCancel(ctx)
	defer powerOff()
	member, networks := agenttest.PretendedMachine(off)
	cfg := agent.Config{
		Node: api.NodeRecord{
			Name: w.Name, Underlay: s.Address.Addr().String(), AgentVersion: "simulated", BootGeneration: w.Agent.Generation, InRAM: true,
		},
		StateDir: dir, HomeDir: filepath.Join(dir, "home"), Fabric: networks,
		Drivers:  []driver.Driver{member},
		Inspect:  func(context.Context) []api.EnvironmentOnNode { return nil },
		PowerOff: func(context.Context) error { powerOff(); return nil },
		Images:   booted{},
		Log:      slog.New(slog.DiscardHandler),
	}
	known, err := agent.OpenCredentials(ctx, config.Agent{StateDir: dir, Server: w.Agent.Server, Name: w.Name}, dir, cfg.Log)
	if err != nil {
		return fmt.Errorf("the agent of %s: %w", w.Name, err)
	}
	known.Use(&cfg)
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ended = append(m.ended, cfg.Client)
	}()
	if err := agent.Run(off, cfg); err != nil && off.Err() == nil {
		return fmt.Errorf("the agent of %s: %w", w.Name, err)
	}
	return nil
}

// Enroll takes machines in, has them inspected, and waits until they are off.
func Enroll(ctx context.Context, c *client.Client, f *fleet.Fleet, count int) error {
	for i := range count {
		if _, err := c.EnrollNode(ctx, api.EnrollRequest{
			Name: "m" + strconv.Itoa(i), Password: Password, Inspect: true,
			Spec: api.MachineSpec{MACs: []string{f.Machine(i).MAC.String()}, Power: Control(i)},
		}); err != nil {
			return fmt.Errorf("enroll machine m%d: %w", i, err)
		}
	}
	for {
		nodes, err := c.Nodes(ctx)
		if err != nil {
			return err
		}
		off := 0
		for _, n := range nodes {
			if m := n.Machine; m != nil && m.Record.InspectedAt != nil && m.Record.Phase == api.MachineOff {
				off++
			}
		}
		if off == count {
			return nil
		}
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("of %d machines %d are inspected and off: %w", count, off, err)
		}
	}
}

// booted are the images of a machine that booted its only one.
type booted struct{}

// Run returns at once.
func (booted) Run(context.Context) {}

// Want takes nothing.
func (booted) Want([]byte, []nodeimages.Wanted) {}

// Status returns nothing.
func (booted) Status() []nodeimages.Status { return nil }

// Whole reports that each image is there.
func (booted) Whole(string) (ok bool, why string) { return true, "" }
