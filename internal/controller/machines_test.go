package controller

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
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
		for m := range l.mustPass().Machines() {
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

func TestAMachineThatDoesNotGoOffIsNotLookedAtWithoutAPause(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	l.view(l.repo.CreateMachine(t.Context(), api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:01"}}}))
	m := l.mustPass().Machine("n1")
	record := *m.Record
	record.Phase = api.MachineStopping
	record.Stop = &api.MachineStop{Generation: 2, CutAt: l.now.Add(-time.Minute), Deadline: l.now.Add(time.Minute)}
	l.view(l.lead.writer.CommitMachine(t.Context(), m, state.MachineWrite{Record: record}))
	l.mustPass()
	if pause := l.lead.wakeAt.Sub(l.now); pause != lookAgain {
		t.Errorf("the next pass is after %s, want %s", pause, lookAgain)
	}
}

func TestAStrangerIsTakenInByItsTokenWithABMCOfItsOwn(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	l.lead.cfg.Provisioning.Network.Machines.To = netip.MustParseAddr("10.9.0.2")
	for kind, want := range map[api.PowerKind]string{api.PowerIPMI: "10.8.0.1", api.PowerRedfish: "https://10.8.0.1"} {
		secret := trust.NewToken(trust.Pin{1})
		hash, err := hex.DecodeString(secret.SHA256())
		if err != nil {
			t.Fatal(err)
		}
		l.view(l.repo.CreateEnrollToken(t.Context(), api.EnrollmentToken{
			ID: secret.ID(), Hash: hash, Prefix: string(kind), Uses: 9, Power: api.PowerControl{Kind: kind, User: "u"}, ExpiresAt: l.now.Add(time.Hour),
		}))
		taken := func(mac, bmc string) (*state.View, string) {
			t.Helper()
			p := l.lead.newPass(l.lead.cfg.Cache.View())
			problem, err := p.enroll(t.Context(), bootapi.Stranger{
				MAC: mac, Token: secret.Bearer(), Hardware: api.Hardware{BMC: &api.BMC{Address: bmc}},
			})
			if err != nil {
				t.Fatal(err)
			}
			return l.view(p.committed, nil), problem
		}
		mac := map[api.PowerKind]string{api.PowerIPMI: "52:54:00:00:00:01", api.PowerRedfish: "52:54:00:00:00:02"}[kind]
		view, problem := taken(mac, "10.8.0.1")
		if m := view.MachineByMAC(mac); problem != "" || m == nil || m.Intent.Spec.Power.Address != want {
			t.Fatalf("%s: %q, %+v", kind, problem, m)
		}
		// A machine that says that another's BMC is its own would have that one's power cut for it.
		if _, problem := taken("52:54:00:00:00:09", "10.8.0.1"); !strings.Contains(problem, "belongs to machine "+string(kind)+"1") {
			t.Errorf("%s: a stranger with another machine's BMC: %q", kind, problem)
		}
		if view.CountMachines() == 2 {
			if _, problem := taken("52:54:00:00:00:09", "10.8.0.9"); !strings.Contains(problem, "all 2 addresses") {
				t.Errorf("a stranger that there is no address for: %q", problem)
			}
		}
	}
}
