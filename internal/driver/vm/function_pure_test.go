package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

const adapter = "0000:3b:00.0"

// onFunctions puts a member's first port on a virtual function and its second on a MACVTAP device of another one.
func onFunctions(m *driver.Member) {
	for n, kind := range []api.PortKind{api.PortVF, api.PortMACVTAP} {
		part := []string{"vf3", "vf5"}[n]
		m.Assignment.Devices = append(m.Assignment.Devices, api.DeviceClaim{Class: "nic", Device: adapter, Way: "vf", Part: part})
		p := &m.Assignment.Ports[n]
		p.Kind, p.Device, p.Part = kind, adapter, part
	}
}

func TestAMachineIsTheSameWithAFunctionAndWithout(t *testing.T) {
	for _, standby := range []bool{false, true} {
		t.Run(fmt.Sprint("standby ", standby), func(t *testing.T) { sameWithAndWithout(t, standby) })
	}
}

func sameWithAndWithout(t *testing.T, standby bool) {
	m, h := goldenMember(), hardware{}
	onFunctions(&m)
	m.Assignment.Ports[0].Standby = standby
	with := newDomain(m, goldenImage(), viewOf("m"), "u", h, nil)
	with.take([]hostDevice{{Domain: "0000", Bus: "3b", Slot: "10", Function: "2", Standby: standbyAlias(fabric.PortOf(&m.Assignment, 0), 0)}})
	without := newDomain(m, goldenImage(), viewOf("m"), "u", h, nil)
	a, errA := with.xml()
	b, errB := without.xml()
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	device := with.Functions[0].XML()
	if !strings.Contains(a, device) {
		t.Fatalf("the machine lacks %s", device)
	}
	if got := strings.Replace(a, "    "+device+"\n", "", 1); got != b {
		t.Errorf("besides the function, they differ:\n%s", cmp.Diff(b, got))
	}
	if got, err := parseHostDevices(a); err != nil || !cmp.Equal(got, with.Functions) {
		t.Errorf("read back: %v, %v; want %v", got, err, with.Functions)
	}
	if got, err := parseHostDevices(b); err != nil || len(got) > 0 {
		t.Errorf("read back without: %v, %v", got, err)
	}
}

func TestAMachineThatLacksAFunctionIsFound(t *testing.T) {
	m := goldenMember()
	if got := lacking(&m.Assignment, nil); got != "" {
		t.Errorf("a machine whose ports are no functions lacks %q", got)
	}
	onFunctions(&m)
	if got := lacking(&m.Assignment, []hostDevice{{Domain: "0000", Bus: "3b", Slot: "10", Function: "2"}}); got != "" {
		t.Errorf("a machine with its function lacks %q", got)
	}
	if got, want := lacking(&m.Assignment, nil), "its virtual machine has 0 of its 1 functions of adapters"; got != want {
		t.Errorf("without its function: got %q, want %q", got, want)
	}
}

func TestAFunctionSurvivesWhatItsKindAndItsNetworkLet(t *testing.T) {
	for _, c := range []struct {
		kind       api.PortKind
		technology api.Technology
		verb       verb
		want       string
	}{
		{api.PortVF, api.TechnologyVLAN, verbSave, ""},
		{api.PortVF, api.TechnologyVLAN, verbMove, ""},
		{api.PortVF, api.TechnologyVLAN, verbSnapshot, "does not let"},
		{api.PortVF, api.TechnologyInfiniBand, verbSave, ""},
		{api.PortVF, api.TechnologyInfiniBand, verbMove, "queue pairs"},
		{api.PortPF, api.TechnologyVLAN, verbSave, ""},
		{api.PortPF, api.TechnologyVLAN, verbMove, "whole port"},
		{api.PortMACVTAP, api.TechnologyVLAN, verbMove, ""},
		{api.PortMACVTAP, api.TechnologyVLAN, verbSnapshot, ""},
		{api.PortTAP, api.TechnologyVXLAN, verbSnapshot, ""},
	} {
		m := goldenMember()
		m.Assignment.Ports, m.Networks = m.Assignment.Ports[:1], m.Networks[:1]
		p := &m.Assignment.Ports[0]
		p.Kind, p.Device, p.Part = c.kind, adapter, "vf3"
		m.Networks[0].Technology = c.technology
		err := surviveAll(m, c.verb)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, errFunctionStays) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s on %s, %s: %v, want %q", c.kind, c.technology, c.verb, err, c.want)
		}
	}
}

func TestABlockVolumeIsAtOneEndOfAMove(t *testing.T) {
	m := driver.Member{Disks: []driver.Disk{{Name: "data"}}}
	if err := surviveAll(m, verbMove); err == nil || !strings.Contains(err.Error(), "move it offline") {
		t.Errorf("it moves while it runs: %v", err)
	}
	if err := surviveAll(m, verbSave); err != nil {
		t.Errorf("it is not saved: %v", err)
	}
}

func TestOnlyPCIAddressesBecomeDevices(t *testing.T) {
	got, err := newHostDevice("0000:3b:10.2")
	if want := (hostDevice{Domain: "0000", Bus: "3b", Slot: "10", Function: "2"}); err != nil || got != want || got.String() != "0000:3b:10.2" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "3b:10.2", "0000:3b:10.2'/><x", "0000:3b:10.9", "eth0"} {
		if got, err := newHostDevice(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func TestAGuestIsGivenThePartitionOfNetworksThatCarryIP(t *testing.T) {
	for name, c := range map[string]struct {
		network   api.Network
		key       int
		connected bool
	}{
		"a VLAN":                          {api.Network{Technology: api.TechnologyVLAN, VLAN: 101}, 0, false},
		"a partition for RDMA alone":      {api.Network{Technology: api.TechnologyInfiniBand, PKey: 0x112}, 0, false},
		"IP over InfiniBand":              {api.Network{Technology: api.TechnologyInfiniBand, PKey: 0x112, Partition: api.Partition{IPoIB: true}}, 0x112, false},
		"IP over InfiniBand, connected":   {api.Network{Technology: api.TechnologyInfiniBand, PKey: 0x112, Partition: api.Partition{IPoIB: true, IPoIBMode: api.IPoIBConnected}}, 0x112, true},
		"IP over InfiniBand in datagrams": {api.Network{Technology: api.TechnologyInfiniBand, PKey: 0x112, Partition: api.Partition{IPoIB: true, IPoIBMode: api.IPoIBDatagram}}, 0x112, false},
	} {
		if key, connected := ipoibOf(c.network); key != c.key || connected != c.connected {
			t.Errorf("%s: got key %#x, connected %v", name, key, connected)
		}
	}
}

// parks is an Attacher that takes note of what is attached and parked.
type parks struct {
	drivertest.Ports
	attached []fabric.Place
	parked   []fabric.Port
}

func (p *parks) Attach(_ context.Context, _ fabric.Port, place fabric.Place) error {
	p.attached = append(p.attached, place)
	return nil
}

func (p *parks) AttachFunction(context.Context, fabric.Port, string) (fabric.FunctionState, error) {
	return fabric.FunctionState{}, nil
}

func (p *parks) ParkFunction(_ context.Context, port fabric.Port) error {
	p.parked = append(p.parked, port)
	return nil
}

func (p *parks) Readmit(context.Context, string) error { return nil }

func TestAPortWithAStandbyIsATAPDeviceAndAFunctionThatIsParked(t *testing.T) {
	for _, standby := range []bool{true, false} {
		attacher := &parks{}
		d := &Driver{}
		d.cfg.Attacher = attacher
		m := goldenMember()
		m.Assignment.Ports = m.Assignment.Ports[:1]
		m.Networks[0].Technology = api.TechnologyVLAN
		p := &m.Assignment.Ports[0]
		p.Kind, p.Device, p.Part, p.Standby = api.PortVF, adapter, "vf3", standby
		port := fabric.PortOf(&m.Assignment, 0)
		if err := errors.Join(d.attach(t.Context(), m, 1), d.parkFunctions(t.Context(), m)); err != nil {
			t.Fatal(err)
		}
		var places []fabric.Place
		var parked []fabric.Port
		if standby {
			place := fabric.TAP(port)
			place.Queues = 1
			places, parked = []fabric.Place{place}, []fabric.Port{port}
		}
		if !cmp.Equal(attacher.attached, places) || len(attacher.parked) != len(parked) || standby && attacher.parked[0] != port {
			t.Errorf("standby %t: attached %v, parked %v", standby, attacher.attached, attacher.parked)
		}
		setup, err := d.setupOf(m)
		if err != nil || len(setup.Interfaces) != 1 || setup.Interfaces[0].Standby != standby || setup.Interfaces[0].Comes == standby || setup.Interfaces[0].MTU != 1500 {
			t.Errorf("standby %t: the guest is given %+v, %v", standby, setup.Interfaces, err)
		}
	}
}

// releases is an Attacher that takes note of what is detached, and fails on request.
type releases struct {
	drivertest.Ports
	fail     error
	released []string
}

func (r *releases) Detach(_ context.Context, id string) error {
	if r.fail != nil {
		return r.fail
	}
	r.released = append(r.released, id)
	return nil
}

func TestASavedMemberHoldsItsFunctionsUntilTheyAreReleased(t *testing.T) {
	for _, kind := range []api.PortKind{api.PortVF, api.PortMACVTAP} {
		attacher := &releases{fail: errors.New("the adapter hangs")}
		d := &Driver{machines: t.TempDir()}
		d.cfg.Attacher = attacher
		m := goldenMember()
		id := m.Assignment.ID
		if err := errors.Join(os.MkdirAll(d.dir(id), 0o700), d.noteHolds(&m.Assignment)); err != nil || d.holds(id) {
			t.Fatalf("a member without functions holds some: %v", err)
		}
		if err := d.letGo(t.Context(), id); err != nil {
			t.Errorf("a member without functions has nothing to let go: %v", err)
		}
		p := &m.Assignment.Ports[0]
		p.Kind, p.Device, p.Part = kind, adapter, "vf3"
		if err := d.noteHolds(&m.Assignment); err != nil {
			t.Fatal(err)
		}
		if err := d.letGo(t.Context(), id); err == nil || !d.holds(id) {
			t.Errorf("%s: a function that is not released: %v, held %t", kind, err, d.holds(id))
		}
		attacher.fail = nil
		if err := d.letGo(t.Context(), id); err != nil || d.holds(id) || len(attacher.released) != 1 {
			t.Errorf("%s: a function that is released: %v, held %t, released %v", kind, err, d.holds(id), attacher.released)
		}
		if err := d.letGo(t.Context(), id); err != nil || len(attacher.released) != 1 {
			t.Errorf("%s: released again: %v, %v", kind, err, attacher.released)
		}
	}
}

func TestTheContainerOfIOMMUGroupsIsOpenToTheClustersUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vfio")
	if err := openToAll(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := openToAll(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the file is %v, %v, want mode 666", info, err)
	}
}
