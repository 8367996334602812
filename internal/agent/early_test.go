package agent

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
)

// makers is a driver that tells of each start, and goes on when the test says so.
type makers struct {
	driver.Driver
	begun chan struct{}
	goOn  chan struct{}
}

func (d *makers) Start(ctx context.Context, m driver.Member) error {
	d.begun <- struct{}{}
	<-d.goOn
	return d.Driver.Start(ctx, m)
}

// networked is an agent whose one member needs a network; networks are applied with the error that is read from the channel.
func networked(t *testing.T) (a *Agent, m *memberState, d *makers, apply chan<- error) {
	t.Helper()
	a = newTestAgent(t)
	ports, results := &fabricfake.Fabric{}, make(chan error)
	a.cfg.Fabric = ports
	network := fabrictest.Network(3, 1)
	port := network.Ports[0]
	want := &agentstream.Member{FilesDigest: "1"}
	want.HomeDir, want.Networks = filepath.Join(a.cfg.StateDir, "home"), []api.Network{network.Network}
	want.Assignment = api.Assignment{ID: port.ID, Stack: api.StackContainer, Generation: 1, Ports: []api.PortClaim{{Address: port.Address, MAC: port.MAC}}}
	a.desired = &agentstream.Desired{Term: 1, Networks: []fabric.Network{network}}
	d = &makers{Driver: fake.New(fake.NewHost(), ports), begun: make(chan struct{}), goOn: make(chan struct{})}
	m = &memberState{id: port.ID, driver: d, want: want, wanted: "1", state: driver.StateAbsent, cleaned: true}
	a.members[m.id] = m
	a.networks.apply = func(ctx context.Context, want []fabric.Network, tunnels []fabric.Tunnel) {
		if err := <-results; err != nil {
			a.cfg.Fabric = failing{ports, err}
		} else {
			a.cfg.Fabric = ports
		}
		a.applyNetworks(ctx, want, tunnels)
	}
	return a, m, d, results
}

// failing is a fabric that can't apply.
type failing struct {
	fabric.Fabric
	err error
}

func (f failing) Apply(context.Context, []fabric.Network) error { return f.err }

func TestAMemberIsMadeWhileItsNetworksAre(t *testing.T) {
	a, m, d, apply := networked(t)
	a.converge(t.Context())
	<-d.begun
	if !a.networks.busy {
		t.Error("the member was started, and its network is not being made")
	}
	apply <- nil
	(<-a.events)()
	d.goOn <- struct{}{}
	(<-a.events)()
	if m.state != driver.StateRunning || m.attempts.Count != 0 {
		t.Errorf("the member is %s after %d failures, want it running", m.state, m.attempts.Count)
	}
}

func TestNetworksThatCannotBeMadeAreNoFailureOfTheMember(t *testing.T) {
	a, m, d, apply := networked(t)
	a.converge(t.Context())
	<-d.begun
	apply <- errors.New("nft is missing")
	(<-a.events)()
	d.goOn <- struct{}{}
	(<-a.events)() // the start has failed
	(<-a.events)() // what is left was looked at
	if m.attempts.Count != 0 || m.state == driver.StateRunning || m.busy {
		t.Errorf("after its network could not be made the member is %s, has %d failures, and is busy: %t", m.state, m.attempts.Count, m.busy)
	}
	if begins(t, a, m, d) {
		t.Error("it is started again, though its network is neither there nor being made")
	}
	// Once there is a network, a start that finds none is its own failure: it would be tried again without end.
	a.networks.ok, a.networks.busy, a.networks.applied = true, false, a.desired.Networks
	a.cfg.Fabric = &fabricfake.Fabric{}
	if !begins(t, a, m, d) {
		t.Fatal("it is not started, though its network is there")
	}
	d.goOn <- struct{}{}
	(<-a.events)()
	if m.attempts.Count != 1 {
		t.Errorf("a start without a network that should be there counts as %d failures, want 1", m.attempts.Count)
	}
}

// begins converges until a start has begun; false: nothing is under way.
func begins(t *testing.T, a *Agent, m *memberState, d *makers) bool {
	t.Helper()
	for {
		a.converge(t.Context())
		if !m.busy {
			return false
		}
		select {
		case <-d.begun:
			return true
		case event := <-a.events:
			event()
		}
	}
}
