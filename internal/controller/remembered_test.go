package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// counted are images and passwords that count how often they are asked for. What is missing can't be loaded.
type counted struct {
	Images
	loads, unseals int
	missing        bool
	freed          int64
}

func (c *counted) Load(digest image.Digest) (*image.Manifest, error) {
	c.loads++
	if c.missing {
		return nil, fmt.Errorf("no manifest %s", digest)
	}
	return &image.Manifest{Metal: &image.Metal{}}, nil
}

func (c *counted) Collect([]image.Digest, time.Duration) (int64, error) { return c.freed, nil }

func (c *counted) unseal(uid string, sealed []byte) ([]byte, error) {
	c.unseals++
	return []byte(uid + " " + string(sealed)), nil
}

// take returns the counts since it was called last.
func (c *counted) take() (loads, unseals int) {
	loads, unseals = c.loads, c.unseals
	c.loads, c.unseals = 0, 0
	return loads, unseals
}

// telling is a leader whose machines boot and have BMCs with passwords, and what it told of them last.
type telling struct {
	*led
	counted *counted
	all     []*state.Machine
	table   netboot.Table
	orders  *idle
}

func newTelling(t *testing.T, machines int) *telling {
	t.Helper()
	l := &telling{led: newLed(t, memory.New()), counted: &counted{}}
	l.provisions()
	l.orders = l.lead.provisioner.(*idle)
	l.lead.cfg.Images, l.lead.cfg.Provisioning.Unseal = l.counted, l.counted.unseal
	l.lead.cfg.Provisioning.SetTable = func(table netboot.Table) { l.table = table }
	for i := range machines {
		m := bootingMachine(i, "sha256:a")
		m.Intent.Sealed = []byte("first")
		l.all = append(l.all, m)
	}
	return l
}

// tell tells of all machines, and wants so many images loaded and passwords opened for it.
func (l *telling) tell(what string, loads, unseals int) {
	l.t.Helper()
	view := &state.View{}
	for _, m := range l.all {
		view.Nodes = append(view.Nodes, &state.Node{Name: m.Name(), Machine: m})
	}
	errs := l.lead.tellMachines(view)
	failed := slices.ContainsFunc(errs, func(err error) bool { return err != nil })
	if failed != l.counted.missing {
		l.t.Errorf("%s: errors %v", what, errs)
	}
	if gotLoads, gotUnseals := l.counted.take(); gotLoads != loads || gotUnseals != unseals {
		l.t.Errorf("%s: %d images were loaded and %d passwords opened; want %d and %d", what, gotLoads, gotUnseals, loads, unseals)
	}
	if len(l.table.Machines) != len(l.all) || len(l.orders.desired.Machines) != len(l.all) {
		l.t.Fatalf("%s: the table has %d machines, the orders %d; want %d", what, len(l.table.Machines), len(l.orders.desired.Machines), len(l.all))
	}
}

// change replaces a machine, as the view does.
func (l *telling) change(i int, change func(*state.Machine)) *state.Machine {
	next, record := *l.all[i], *l.all[i].Record
	next.Record = &record
	change(&next)
	l.all[i] = &next
	return &next
}

func TestAPassWorksOutOnlyTheMachinesThatChanged(t *testing.T) {
	l := newTelling(t, 20)
	l.tell("the first pass", 1, 20)
	l.tell("a pass without a change", 0, 0)

	before, kept := l.table.Machines, maps.Clone(l.table.Machines)
	changed := l.change(7, func(m *state.Machine) { m.Record.Boot = &api.Boot{Generation: 9, Digest: "sha256:a"} })
	l.tell("one machine boots again", 0, 0)
	if !maps.Equal(before, kept) {
		t.Error("the table that network boot already had was changed")
	}
	for mac, row := range l.table.Machines {
		if again := row != before[mac]; again != (row.Name == changed.Name()) {
			t.Errorf("the row of %s was made again: %t", row.Name, again)
		}
		if want := int64(2); row.Name == changed.Name() && row.Boot.Generation != 9 || row.Name != changed.Name() && row.Boot.Generation != want {
			t.Errorf("%s boots generation %d", row.Name, row.Boot.Generation)
		}
	}

	l.change(3, func(m *state.Machine) { m.Intent.Sealed = []byte("second") })
	l.tell("one machine has another password", 0, 1)
	password := func(i int) string {
		at := slices.IndexFunc(l.orders.desired.Machines, func(m provisioner.Machine) bool { return m.UID == l.all[i].UID() })
		return l.orders.desired.Machines[at].Target.Credentials.Password
	}
	if password(3) != "u3 second" || password(4) != "u4 first" {
		t.Errorf("passwords are %q and %q", password(3), password(4))
	}
	l.change(3, func(m *state.Machine) { m.Intent.Sealed = nil })
	if l.tell("one machine has no password any more", 0, 0); password(3) != "" {
		t.Errorf("its password is %q", password(3))
	}

	l.all = l.all[1:]
	l.tell("a machine was removed", 0, 0)
	if len(l.lead.remembered.machines) != len(l.all) {
		t.Errorf("%d machines are remembered, there are %d", len(l.lead.remembered.machines), len(l.all))
	}
	gone := l.all[0].UID()
	l.all[0] = bootingMachine(30, "sha256:b")
	l.tell("another machine with another image took its place", 1, 0)
	if l.lead.remembered.machines[gone] != nil {
		t.Error("the machine that left is remembered, and its password with it")
	}
}

func TestAnImageThatCanNotBeReadIsReadAgainInTheNextPass(t *testing.T) {
	l := newTelling(t, 2)
	l.counted.missing = true
	l.tell("without the image", 2, 2)
	for _, row := range l.table.Machines {
		if row.Boot != nil {
			t.Errorf("%s boots what is not there", row.Name)
		}
	}
	l.counted.missing = false
	l.tell("with the image", 1, 0)
	for _, row := range l.table.Machines {
		if row.Boot == nil {
			t.Errorf("%s does not boot", row.Name)
		}
	}
}

func TestWhereImagesWereRemovedAllAreReadAgain(t *testing.T) {
	l := newTelling(t, 2)
	l.tell("the first pass", 1, 2)
	p := l.lead.newPass(l.cache.View())
	for freed, loads := range map[int64]int{0: 0, 1: 1} {
		l.counted.freed = freed
		if _, err := p.pruneProvisioning(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.tell(fmt.Sprintf("%d bytes were removed", freed), loads, 0)
	}
}

func TestNotMoreImagesAreRememberedThanTheBound(t *testing.T) {
	l := newTelling(t, 0)
	for i := range mostImages + 1 {
		if _, err := l.lead.imageOf(image.Digest(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.lead.remembered.images); n > mostImages {
		t.Errorf("%d images are remembered, the bound is %d", n, mostImages)
	}
}

func TestMachinesThatAreStoredUnchangedAreNotWorkedOutAgain(t *testing.T) {
	l := newTelling(t, 0)
	const machines = 5
	for i := range machines {
		m := bootingMachine(i, "sha256:a")
		m.Intent.Sealed = []byte("first")
		l.view(l.repo.CreateMachine(t.Context(), m.Intent))
		m.Record.Boot.Deadline = l.now.Add(time.Hour)
		l.view(l.leader.CommitMachine(t.Context(), l.cache.View().Machine(m.Name()), state.MachineWrite{Record: *m.Record}))
	}
	if l.mustPass(); len(l.table.Machines) != machines {
		t.Fatalf("the table has %d machines", len(l.table.Machines))
	}
	if loads, unseals := l.counted.take(); loads != 1 || unseals != machines {
		t.Errorf("the first pass loaded %d images and opened %d passwords; want 1 and %d", loads, unseals, machines)
	}
	l.node("n9", 1) // something else changes
	l.mustPass()
	if loads, unseals := l.counted.take(); loads != 0 || unseals != 0 {
		t.Errorf("the next pass loaded %d images and opened %d passwords; want none", loads, unseals)
	}
}
