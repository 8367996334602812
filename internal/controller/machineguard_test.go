package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestANodeIsToldToGoOffForTheBootThatIsToEnd(t *testing.T) {
	record := &api.MachineRecord{Name: "n1", Phase: api.MachineStopping, Generation: 4, Boot: &api.Boot{Generation: 3}, Stop: &api.MachineStop{Generation: 4}}
	view := &state.View{
		Nodes: []*state.Node{{Name: "n1", Machine: &state.Machine{Intent: api.MachineIntent{Name: "n1"}, Record: record}}},
		Builds: []*api.Build{
			{ID: "b1", Phase: api.BuildRunning, Node: "n2", Verify: true, Built: []api.BuiltBy{{Node: "n9", Digest: "sha256:x"}}}, {ID: "b2", Phase: api.BuildRunning, Node: "n2", CancelRequested: true}, {ID: "b3", Phase: api.BuildPending},
		},
	}
	var d desiredStates
	d.updateMachines(view, map[string]bool{})
	if off := d.machines["n1"].powerOff; off == nil || off.BootGeneration != 3 {
		t.Errorf("it is told %+v, want boot 3", off)
	}
	if builds := d.machines["n2"].builds; len(builds) != 1 || builds[0].ID != "b1" || builds[0].Built != nil {
		t.Errorf("its builder is told of %+v, want b1, and not what it should arrive at", builds)
	}
	view.Nodes[0].Agent = &api.NodeRecord{Name: "n1", BootGeneration: 2}
	if d.updateMachines(view, map[string]bool{}); d.machines["n1"].powerOff.BootGeneration != 2 {
		t.Errorf("what runs there is of boot 2, and it is told %+v", d.machines["n1"].powerOff)
	}
	record.Phase, record.Stop = api.MachineBooting, nil
	if d.updateMachines(view, map[string]bool{}); d.machines["n1"].powerOff == nil || d.machines["n1"].powerOff.BootGeneration != 2 {
		t.Errorf("boot 3 is decided, boot 2 runs, and it is told %+v", d.machines["n1"].powerOff)
	}
	view.Nodes[0].Agent.BootGeneration = 3
	if d.updateMachines(view, map[string]bool{}); d.machines["n1"].powerOff != nil {
		t.Errorf("the boot that was decided is told %+v", d.machines["n1"].powerOff)
	}
	record.Stop = &api.MachineStop{Generation: 4}
	record.Phase = api.MachineFailed // what could not be stopped is for somebody to look at
	if d.updateMachines(view, map[string]bool{}); d.machines["n1"].powerOff != nil {
		t.Error("a machine that failed is told to go off")
	}
}

func TestAMachineIsNotWokenForNothing(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	m := &state.Machine{
		Intent: api.MachineIntent{Name: "n1", UID: "u1"},
		Record: &api.MachineRecord{Name: "n1", UID: "u1", Phase: api.MachineBooting, Generation: 3, Boot: &api.Boot{Generation: 3}},
	}
	if o, err := l.lead.ordered(m, true, l.now); err != nil || o.Order != provisioner.Wake || o.Generation != 3 || o.WasDone {
		t.Fatalf("ordered is %+v, %v", o, err)
	}
	if o, err := l.lead.ordered(m, false, l.now); err != nil || o.Order != provisioner.Leave {
		t.Errorf("without anything to boot it is told to %q, %v", o.Order, err)
	}
	m.Record.Boot.Stages = []api.StageTime{{Stage: api.StagePower}}
	if o, err := l.lead.ordered(m, true, l.now); err != nil || !o.WasDone {
		t.Errorf("that it was woken already is not told: %+v, %v", o, err)
	}
	m.Intent.Sealed = []byte("of another site")
	l.lead.cfg.Provisioning.Unseal = func(string, []byte) ([]byte, error) { return nil, errors.New("it does not open") }
	if o, err := l.lead.ordered(m, true, l.now); err == nil || o.Order != provisioner.Leave {
		t.Errorf("without its BMC's password it is told to %q, %v", o.Order, err)
	}
}

func TestWhereThereIsNothingToReadNothingIsWaitedFor(t *testing.T) {
	l := newLed(t, memory.New())
	p := l.lead.newPass(&state.View{})
	for name, tc := range map[string]struct {
		observed provisioner.Observed
		known    bool
	}{
		"a button that a person presses": {provisioner.Observed{UID: "u1", State: api.PowerUnknown}, true},
		"a BMC that was not asked yet":   {provisioner.Observed{UID: "u1", Abilities: power.Abilities{Observes: true}}, false},
		"a BMC that has answered":        {provisioner.Observed{UID: "u1", Abilities: power.Abilities{Observes: true}, ObservedAt: l.now}, true},
	} {
		if seen := p.powerSeen(tc.observed); seen.Known != tc.known {
			t.Errorf("%s: known %v, want %v", name, seen.Known, tc.known)
		}
	}
}

func TestUEFIFirmwareIsPointedAtItsLoaderOnTheFirstAttemptOnly(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	const url = "http://10.9.0.1/loader/ipxe.efi"
	l.lead.cfg.Provisioning.LoaderURL = url
	for name, tc := range map[string]struct {
		told, heard  api.Firmware
		architecture string
		attempt      int
		want         string
	}{
		"its operator says UEFI":                  {told: api.FirmwareUEFI, attempt: 1, want: url},
		"its last boot did":                       {heard: api.FirmwareUEFI, architecture: archX64, attempt: 1, want: url},
		"the second attempt takes PXE":            {told: api.FirmwareUEFI, attempt: 2},
		"the loader is not for this architecture": {told: api.FirmwareUEFI, architecture: "aarch64", attempt: 1},
		"a BIOS has no HTTP client":               {told: api.FirmwareBIOS, heard: api.FirmwareUEFI, attempt: 1},
		"nobody knows what firmware it has":       {attempt: 1},
	} {
		m := &state.Machine{
			Intent: api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{Firmware: tc.told}},
			Record: &api.MachineRecord{
				Name: "n1", Phase: api.MachineBooting, Firmware: tc.heard, Architecture: tc.architecture, Attempt: tc.attempt, Boot: &api.Boot{Generation: 3},
			},
		}
		o, err := l.lead.ordered(m, true, l.now)
		if err != nil || o.Boot.URI != tc.want || !o.Boot.Network {
			t.Errorf("%s: it boots from %+v, %v; want %q", name, o.Boot, err, tc.want)
		}
	}
}

func TestAnImagesOwnWordOnPanicsComesAfterOurs(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	for own, want := range map[string]string{"": "panic=30", "quiet": "panic=30 quiet", "panic=0": "panic=30 panic=0"} {
		l.lead.cfg.Images = oneImage{arguments: own}
		b, err := l.lead.bootOf(api.Boot{Generation: 1, Digest: "sha256:" + own})
		if err != nil || b.Arguments != want {
			t.Errorf("with %q: %+v, %v; want %q", own, b, err, want)
		}
	}
}

// oneImage is an image store whose every image has these arguments.
type oneImage struct {
	Images
	arguments string
}

func (i oneImage) Load(image.Digest) (*image.Manifest, error) {
	return &image.Manifest{Metal: &image.Metal{Arguments: i.arguments}}, nil
}

func TestAMachineBootsOnlyWhatIsForMetalAndSuitsIt(t *testing.T) {
	l := newLed(t, memory.New())
	p := l.lead.newPass(&state.View{
		Images: []*api.Image{
			{Digest: "sha256:a", Architecture: "x86_64", Stacks: []api.Stack{api.StackMetal}, MetalBytes: 18 << 20, KernelVersion: "6.1"},
			{Digest: "sha256:b", Architecture: "x86_64", Stacks: []api.Stack{api.StackContainer}},
		},
		Environments: []*api.EnvironmentRecord{{Name: "container-only", Digest: "sha256:b"}, {Name: "debian-mpi", Digest: "sha256:a"}},
	})
	for _, tc := range []struct{ environment, architecture, want string }{
		{"debian-mpi", "x86_64", ""},
		{"debian-mpi", "aarch64", "the machine is aarch64"},
		{"container-only", "x86_64", "no kernel for bare metal"},
		{"nonesuch", "x86_64", "is not built"},
		{"", "x86_64", "no environment is given"},
	} {
		m := &state.Machine{Hardware: &api.Hardware{Architecture: tc.architecture, MemoryBytes: 64 << 30}}
		digest, problem := p.bootable(m, tc.environment)
		if (digest == "") != (tc.want != "") || !strings.Contains(problem, tc.want) {
			t.Errorf("%q on %s: %q, %q; want %q", tc.environment, tc.architecture, digest, problem, tc.want)
		}
	}
}

// Whoever asks for its removal may not have seen yet that a cluster has got it.
func TestAMachineThatIsInUseByNowIsNotRemoved(t *testing.T) {
	for force, want := range map[bool]api.MachinePhase{false: api.MachineReady, true: api.MachineRemoving} {
		l := newLed(t, memory.New())
		l.provisions()
		l.view(l.repo.CreateMachine(t.Context(), api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:01"}}}))
		l.node("n1", 2)
		m := l.mustPass().Machine("n1")
		record := *m.Record
		record.Phase, record.Boot = api.MachineReady, &api.Boot{Generation: 1}
		l.view(l.lead.writer.CommitMachine(t.Context(), m, state.MachineWrite{Record: record}))
		l.want("a")
		if on := l.mustPass().OnNode("n1"); len(on) != 1 {
			t.Fatalf("it carries %q, want one member", on)
		}
		_, revision, err := l.repo.RequestMachineRemoval(t.Context(), "n1", force, l.now)
		l.view(revision, err)
		if record := l.mustPass().Machine("n1").Record; record.Phase != want || !force && !strings.Contains(record.Message, "1 members of cluster a") {
			t.Errorf("by force %v: it is %s, %q; want %s", force, record.Phase, record.Message, want)
		}
	}
}

func TestTheAgentOfAMachineThatIsOffIsNotBelievedAnyMore(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	view := l.view(l.repo.CreateMachine(t.Context(), api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:01"}}}))
	record := api.MachineRecord{Name: "n1", UID: "u1", Phase: api.MachineBooting, Generation: 3, Boot: &api.Boot{Generation: 3}}
	l.view(l.leader.CommitMachine(t.Context(), view.Machine("n1"), state.MachineWrite{Record: record}))
	view = l.view(l.repo.RedeemBoot(t.Context(), state.Redemption{UID: "u1", Machine: "n1", Generation: 3, NonceSHA256: "n"}, &api.NodeIdentity{Node: "n1", ID: "agent"}))
	if view.Node("n1").Identity == nil {
		t.Fatal("the agent has no identity")
	}
	record.Phase, record.ChangedAt = api.MachineOff, l.now.Add(time.Second)
	p := l.lead.newPass(view)
	if _, err := p.commitMachine(t.Context(), view.Machine("n1"), decision.MachineChange{Record: record, Dirty: true}); err != nil {
		t.Fatal(err)
	}
	// Whatever is written next brings the view up to it.
	view = l.view(l.repo.PutNode(t.Context(), api.NodeRecord{Name: "n2"}))
	if view.Machine("n1").Record.Phase != api.MachineOff || view.Node("n1").Identity != nil {
		t.Errorf("it is %s, and its agent's identity is %+v", view.Machine("n1").Record.Phase, view.Node("n1").Identity)
	}
}

// A later inspection may see what a tenant left, and must not make it the firmware's. Another version of the firmware has variables of its own.
func TestWhatATenantLeftInTheFirmwareStaysTheTenants(t *testing.T) {
	now := api.Hardware{FirmwareVersion: "2", FirmwareVariables: []string{"Setup", "Tenant"}}
	for name, c := range map[string]struct {
		was  *api.Hardware
		want string
	}{
		"the first inspection":          {nil, "Setup Tenant"},
		"the same firmware":             {&api.Hardware{FirmwareVersion: "2", FirmwareVariables: []string{"Setup"}}, "Setup"},
		"another version of it":         {&api.Hardware{FirmwareVersion: "1", FirmwareVariables: []string{"Setup"}}, "Setup Tenant"},
		"an inspection before the list": {&api.Hardware{FirmwareVersion: "2"}, "Setup Tenant"},
	} {
		if got := strings.Join(firstVariables(c.was, now), " "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
