package lifecycle

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestWhatAMembersFunctionsLetItDo(t *testing.T) {
	t.Parallel()
	const guid = "0e6d000000040002"
	for name, c := range map[string]struct {
		on   api.Interface
		guid string
		// live and snapshot are parts of the reasons; empty: it can.
		live, snapshot string
	}{
		"a virtual function on a VLAN":    {api.InterfaceVF, "", "", "members that stand still do not let go"},
		"a virtual function on a fabric":  {api.InterfaceVF, guid, "queue pairs do not move while it runs; move it offline (--offline)", "members that stand still do not let go"},
		"a whole port":                    {api.InterfacePF, "", "a whole port of an adapter, which does not move while it runs; move it offline (--offline)", "do not let go"},
		"a MACVTAP device on a function":  {api.InterfaceMACVTAP, "", "", ""},
		"a port on a bridge, for example": {api.InterfaceVirtio, "", "", ""},
	} {
		spec := api.ClusterSpec{Groups: []api.Group{{Name: "c", Stack: api.StackVM, Networks: []api.GroupNetwork{{Name: "project/fast", Interface: c.on}}}}}
		a := api.Assignment{Group: "c", Ports: []api.PortClaim{{Kind: api.PortTAP}, {Kind: api.PortTAP, GUID: c.guid}}}
		if c.on.OnFunction() {
			a.Ports[1].Kind, a.Ports[1].Device = c.on.PortKind(), "nic0"
			a.Devices = []api.DeviceClaim{{Class: api.ClassNIC, Device: "nic0"}}
		}
		if why := Movable(spec, &a, false); !strings.Contains(why, c.live) || c.live == "" && why != "" {
			t.Errorf("%s: it can't move while it runs: %q, want %q", name, why, c.live)
		}
		if why := Movable(spec, &a, true); why != "" {
			t.Errorf("%s: it can't move offline: %s", name, why)
		}
		if why := Snapshottable(spec); !strings.Contains(why, c.snapshot) || c.snapshot == "" && why != "" {
			t.Errorf("%s: it has no snapshots: %q, want %q", name, why, c.snapshot)
		}
		a.Devices = append(a.Devices, api.DeviceClaim{Class: "gpu", Device: "gpu0"})
		if why := Movable(spec, &a, true); why != "it has devices, which can't move" {
			t.Errorf("%s and a GPU: %q", name, why)
		}
	}
}

func TestAMemberWithABlockVolumeMovesOffline(t *testing.T) {
	t.Parallel()
	spec := api.ClusterSpec{Groups: []api.Group{{Name: "c", Stack: api.StackVM}}}
	a := api.Assignment{Group: "c", Volumes: []api.VolumeClaim{{Name: "data"}, {Name: "disk", Block: true}}}
	if why := Movable(spec, &a, false); !strings.Contains(why, `"disk"`) || !strings.Contains(why, "--offline") {
		t.Errorf("it moves while it runs: %q", why)
	}
	if why := Movable(spec, &a, true); why != "" {
		t.Errorf("it does not move offline: %q", why)
	}
}

func TestADrainMovesNobodyWhoseFunctionKeepsItRunningHere(t *testing.T) {
	l := newLife(api.ClusterReady)
	l.machines()
	l.seeAll(api.MemberReady)
	l.Nodes["n1"] = NodeState{Phase: api.NodeReady, Reported: true, Drained: true, DrainedAt: t0}
	look := l.look()
	if _, moves := look.wish(look.members[0]); !moves {
		t.Fatal("a drain moves nobody, so this test shows nothing")
	}
	l.Assignments[0].Ports = []api.PortClaim{{Kind: api.PortPF, Device: "nic0"}}
	look = l.look()
	if asked, moves := look.wish(look.members[0]); moves {
		t.Errorf("a drain moves a member with a whole port while it runs: %+v", asked)
	}
}
