package server_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/opensm"
	"github.com/nearmetal/nearmetal/internal/ibsim"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// A machine that is off, in which inspection found an adapter that a real OpenSM knows: its member is placed with that port, is ready once the port's tables
// have the partition, and the port is clean once they have not.
func TestTheAdapterOfAMachineThatIsOffIsInItsMembersPartitionOfARealSubnetManager(t *testing.T) {
	for _, program := range []string{"ibsim", "opensm", "ibnetdiscover"} {
		needs.Program(t, program)
	}
	fabric, err := ibsim.Start(t.Context(), t.TempDir(), ibsim.OneSwitch(3))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	partitions := filepath.Join(dir, "partitions.conf")
	manager, err := fabric.Manage(t.Context(), "n1", 3, partitions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		manager.Stop()
		if err := fabric.Close(); err != nil {
			t.Error(err)
		}
	})
	executor, err := opensm.New(opensm.Config{
		Dir: filepath.Join(dir, "executor"), Partitions: partitions, Log: slog.New(slog.DiscardHandler),
		Reload: opensm.Reload,
		Run: func(ctx context.Context, program string, args ...string) *exec.Cmd {
			return fabric.Command(ctx, "n1", program, args...)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	keeper := site.NewKeeper(executor, slog.New(slog.DiscardHandler))
	fabrics := situation.Fabrics{"ib0": keeper}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); keeper.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	guid := fabric.Hosts[1].PortGUID()
	network := api.Network{UID: "u", Name: "m", ClusterUID: "u", Index: 0x21, Prefix: netip.MustParsePrefix("10.64.16.0/20"), Gateway: netip.MustParseAddr("10.64.16.1")}
	img := &api.Image{Digest: "sha256:1", Stacks: []api.Stack{api.StackMetal}, RootBytes: 1, MetalBytes: 1, KernelVersion: "6.1"}
	view := &state.View{
		Nodes: []*state.Node{{Name: "m1", Machine: &state.Machine{
			Intent: api.MachineIntent{Name: "m1"}, Record: &api.MachineRecord{Phase: api.MachineOff, Power: api.PowerOff},
			Hardware: &api.Hardware{CPU: api.CPU{Cores: 1}, MemoryBytes: 8 << 30, HCAs: []api.HCA{{Name: "mlx5_0", PortGUIDs: []string{guid}}}},
		}}},
		Environments: []*api.EnvironmentRecord{{Name: "e", Digest: img.Digest}}, Images: []*api.Image{img}, Networks: []*api.Network{&network},
	}
	keeper.Chart().Survey(t.Context())
	room := situation.Room{Offers: offer.Site{Metal: true, Fabrics: fabrics.Names()}, Fabrics: fabrics}
	free, err := room.Update(view, func(string) placement.Availability { return placement.Asleep })
	if err != nil {
		t.Fatal(err)
	}
	placed, refusal := placement.Place(free, placement.Request{Cluster: "m", Groups: []api.Group{{Name: "m", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackMetal, Environment: "e"}}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	all, err := placement.Assign(placed, placement.Decision{ClusterUID: "u", Cluster: "m", Generation: 1, Networks: []api.Network{network}})
	if err != nil || len(all[0].HCAs) != 1 || all[0].HCAs[0].At != guid {
		t.Fatalf("it is placed as %+v: %v", all, err)
	}
	a := &all[0]
	until := func(what string, is func() (bool, string)) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			ok, why := is()
			if ok {
				return
			}
			select {
			case <-keeper.Changed():
			case <-time.After(50 * time.Millisecond):
			case <-deadline:
				t.Fatalf("never: %s: %s", what, why)
			}
		}
	}
	table := func() string {
		t.Helper()
		out, err := fabric.Command(t.Context(), "n2", "smpquery", "-D", "pkeys", "0").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	keeper.Set(lifecycle.Epoch{Term: 1, Revision: 1}, nil)
	until("it is not ready without its partition", func() (bool, string) {
		phase, why := fabrics.Limit(view, a, api.MemberReady, "")
		return phase == api.MemberStarting, why
	})
	keeper.Set(lifecycle.Epoch{Term: 1, Revision: 2}, []site.Network{{Number: network.Index, Ports: []site.Port{{At: a.HCAs[0].At}}}})
	until("it is ready in its partition", func() (bool, string) {
		phase, why := fabrics.Limit(view, a, api.MemberReady, "")
		return phase == api.MemberReady, why
	})
	if keys := table(); !strings.Contains(keys, "0x8021") {
		t.Errorf("the port's table has not the partition: %s", keys)
	}
	keeper.Set(lifecycle.Epoch{Term: 1, Revision: 3}, nil)
	until("it is clean", func() (bool, string) {
		err := keeper.Clean(network.Index, guid)
		if err == nil {
			return true, ""
		}
		return false, err.Error()
	})
	if keys := table(); strings.Contains(keys, "0x8021") {
		t.Errorf("it is clean, and the port's table has the partition: %s", keys)
	}
}
