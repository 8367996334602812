package vm

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/gpu/passthrough"
)

// withGPU is a member that holds a GPU.
func withGPU() driver.Member {
	m := goldenMember()
	m.Assignment.Devices = []api.DeviceClaim{{Class: api.ClassGPU, Device: "GPU-a", Way: api.WayPassthrough, Takes: map[string]int64{api.CounterGPUs: 1}}}
	return m
}

func TestAMachineHasTheFunctionsOfItsGPUsForGood(t *testing.T) {
	m := withGPU()
	onFunctions(&m)
	gpus := []hostDevice{{Domain: "0000", Bus: "3b", Slot: "00", Function: "0", GPU: 1}, {Domain: "0000", Bus: "3b", Slot: "00", Function: "1", GPU: 2}}
	d := newDomain(m, goldenImage(), viewOf("m"), "u", hardware{}, nil)
	function := hostDevice{Domain: "0000", Bus: "3c", Slot: "10", Function: "2"}
	d.take([]hostDevice{function})
	d.GPUs = gpus
	text, err := d.xml()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/></source><alias name='ua-gpu1'/><rom enabled='no'/></hostdev>",
		"<source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x1'/></source><alias name='ua-gpu2'/><rom enabled='no'/></hostdev>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the machine lacks %s in\n%s", want, text)
		}
	}
	if got, err := parseHostDevices(text); err != nil || !cmp.Equal(got, d.Functions) {
		t.Errorf("its functions of adapters read back as %v, %v; want %v", got, err, d.Functions)
	}
	without := goldenMember()
	onFunctions(&without)
	other := newDomain(without, goldenImage(), viewOf("m"), "u", hardware{}, nil)
	if got, want := d.RootPorts[0]-other.RootPorts[0], portsForGPUs; got != want {
		t.Errorf("%d root ports are left to its GPU before that of its function, want %d", got, want)
	}
}

func TestAMachineGetsWholeGPUsOnly(t *testing.T) {
	m := withGPU()
	if err := checkMember(m); err != nil {
		t.Errorf("a whole GPU is refused: %v", err)
	}
	m.Assignment.Devices[0].Way = api.WayRemote
	if err := checkMember(m); err == nil || !strings.Contains(err.Error(), `it holds "remote" of GPU GPU-a`) {
		t.Errorf("got %v", err)
	}
}

func TestAMachineWithAGPUIsNeitherSavedNorMoved(t *testing.T) {
	for _, v := range []verb{verbSave, verbMove, verbSnapshot} {
		m := withGPU()
		if err := gpusStay(m, v); err == nil || !strings.Contains(err.Error(), "it can't be "+string(v)) {
			t.Errorf("%s: got %v", v, err)
		}
		if err := surviveAll(m, v); err == nil {
			t.Errorf("%s: its ports are all that is looked at", v)
		}
		plain := goldenMember()
		if err := gpusStay(plain, v); err != nil {
			t.Errorf("%s: one without a GPU: %v", v, err)
		}
	}
}

// cards stand in for what gives GPUs to machines.
type cards struct {
	taken, given []string
	// folder has the programs of remote GPUs.
	folder string
	err    error
}

func (c *cards) Take(_ context.Context, owner string, claims []api.DeviceClaim) ([]passthrough.Group, error) {
	c.taken = append(c.taken, owner+" "+claims[0].Device)
	return nil, c.err
}

func (c *cards) Give(_ context.Context, owner string) error {
	c.given = append(c.given, owner)
	return c.err
}

// FrontEnds has the programs of remote GPUs in a folder.
func (c *cards) FrontEnds() (*gpu.Edits, error) {
	if c.err != nil {
		return nil, c.err
	}
	return &gpu.Edits{
		Mounts:    []gpu.Mount{{Path: "/run/nearmetal-gpu/lib", HostPath: c.folder, ReadOnly: true}},
		Libraries: map[string]string{"libcuda.so.1": "/run/nearmetal-gpu/lib/libcuda.so.1"},
	}, nil
}

func TestGPUsAreTakenForTheMemberAndGivenBackWhenItIsCleaned(t *testing.T) {
	fake := &cards{}
	d := &Driver{cfg: Config{GPUs: fake}}
	if _, err := d.takeGPUs(t.Context(), withGPU()); err != nil || len(fake.taken) != 1 || fake.taken[0] != "uid.c1-0.1 GPU-a" {
		t.Errorf("taken: %v, %v", fake.taken, err)
	}
	if _, err := d.takeGPUs(t.Context(), goldenMember()); err != nil || len(fake.taken) != 1 {
		t.Errorf("a member without a GPU took %v, %v", fake.taken, err)
	}
	if err := d.giveGPUs(t.Context(), "m"); err != nil || len(fake.given) != 1 {
		t.Errorf("given: %v, %v", fake.given, err)
	}
	fake.err = errors.New("a machine still has it")
	if err := d.giveGPUs(t.Context(), "m"); !errors.Is(err, fake.err) {
		t.Errorf("a member is clean although its GPU is not: %v", err)
	}
	none := &Driver{}
	if _, err := none.takeGPUs(t.Context(), withGPU()); err == nil {
		t.Error("a node without GPUs starts a member that holds one")
	}
}
