package controller

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/bootapi"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/netboot"
	"github.com/nearmetal/nearmetal/internal/provisioner"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// idle is a provisioner that sees nothing.
type idle struct{ desired provisioner.Desired }

func (*idle) Run(ctx context.Context) error    { <-ctx.Done(); return nil }
func (p *idle) Set(d provisioner.Desired)      { p.desired = d }
func (*idle) Observed() []provisioner.Observed { return nil }
func (*idle) Changed() <-chan struct{}         { return nil }

// provisions gives a leader a provisioning network with room for a thousand machines.
func (l *led) provisions() {
	p := &idle{}
	l.lead.provisioner = p
	l.lead.cfg.Provisioning = &Provisioning{
		New: func() Provisioner { return p }, SetTable: func(netboot.Table) {}, Heard: bootapi.NewHeard(func() time.Time { return l.now }),
		Network:   netboot.Network{Machines: netboot.Range{From: netip.MustParseAddr("10.9.0.1"), To: netip.MustParseAddr("10.9.4.0")}},
		Deadlines: lifecycle.DefaultMachineDeadlines(),
	}
}

func TestMachinesThatAreDecidedOnTogetherDoNotHoldUpOnePass(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	const machines = 2*machinesPerPass + 10
	for i := range machines {
		l.view(l.repo.CreateMachine(t.Context(), api.MachineIntent{
			Name: fmt.Sprintf("n%03d", i), UID: fmt.Sprintf("u%d", i), Spec: api.MachineSpec{MACs: []string{fmt.Sprintf("52:54:00:00:00:%02x", i)}},
		}))
	}
	for _, want := range []int{machinesPerPass, 2 * machinesPerPass, machines, machines} {
		decided, places := 0, map[int]bool{}
		for _, m := range l.mustPass().Machines {
			if m.Record != nil {
				decided++
				places[m.Record.Index] = true
			}
		}
		if decided != want || len(places) != decided {
			t.Errorf("%d machines have a record, in %d places; want %d", decided, len(places), want)
		}
		if again := l.lead.wakeAt.Equal(l.now); again != (decided < machines) {
			t.Errorf("with %d machines decided, the next pass is at once: %v", decided, again)
		}
	}
}
