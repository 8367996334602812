package situation

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/topology"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// leaves is a fabric of two leaves: n1 and n2 are under a, n3 and n4 under b.
type leaves struct {
	*fake.Site
	// errors are the symbol errors of the link of n1.
	errors int64
}

func (l *leaves) Survey(context.Context) (topology.Reading, error) {
	t, err := topology.Parse(`
Switch	4 "S-00000000000000a0"		# "a" base port 0 lid 1 lmc 0
[1]	"H-0000000000000010"[1](11) 		# "n1 mlx5_0" lid 2 4xHDR
[2]	"H-0000000000000020"[1](21) 		# "n2 mlx5_0" lid 3 4xHDR
[4]	"S-00000000000000b0"[4]		# "b" lid 4 4xHDR

Switch	4 "S-00000000000000b0"		# "b" base port 0 lid 4 lmc 0
[1]	"H-0000000000000030"[1](31) 		# "n3 mlx5_0" lid 5 4xHDR
[2]	"H-0000000000000040"[1](41) 		# "n4 mlx5_0" lid 6 4xHDR

Ca	1 "H-0000000000000010"		# "n1 mlx5_0"
Ca	1 "H-0000000000000020"		# "n2 mlx5_0"
Ca	1 "H-0000000000000030"		# "n3 mlx5_0"
Ca	1 "H-0000000000000040"		# "n4 mlx5_0"
`)
	return topology.Reading{Topology: t, Counters: topology.Counters{{GUID: "00000000000000a0", Port: "1"}: {"SymbolErrorCounter": l.errors}}}, err
}

// onFabric is a site with nodes n1 to n4 and a cluster whose members on n1 and n2 have ports in its network on cell ib0.
func onFabric(t *testing.T) *state.View {
	t.Helper()
	repo := state.New(memory.New())
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done := func(revision int64, err error) {
		t.Helper()
		if err == nil {
			_, err = cache.WaitRevision(t.Context(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	leadership, err := repo.Store().Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		done(repo.PutNode(t.Context(), api.NodeRecord{
			Name: name, Underlay: "10.0.0." + name[1:], Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}},
			Environments: []api.EnvironmentOnNode{{Name: "local", OK: true, Stacks: []api.Stack{api.StackContainer}}},
			Capacity:     api.NodeCapacity{Cores: []api.Core{{Slot: 0}, {Slot: 1, CPU: 1}}, MemoryBytes: 8 << 30, NUMANodes: []api.NUMANode{{MemoryBytes: 8 << 30}}, UplinkBitsPerSecond: 25e9},
		}))
	}
	done(repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "c", UID: "u", CreatedAt: noon, Spec: api.ClusterSpec{Groups: []api.Group{{Name: "c", Size: 2}}}}))
	member := func(rank int, node, at string) api.Assignment {
		name := "c-" + string(rune('0'+rank))
		return api.Assignment{
			ID: "u." + name + ".1", ClusterUID: "u", Cluster: "c", Group: "c", Member: name, Node: node, Rank: rank, Slots: []int{0}, TakenAt: noon,
			Ports: []api.PortClaim{{Network: "u", Fabric: "ib0", At: at}},
		}
	}
	done(repo.AsLeader(leadership).Commit(t.Context(), cache.View().Cluster("c"), state.Write{
		Record:   api.ClusterRecord{Name: "c", UID: "u", Generation: 1, Phase: api.ClusterReady, ChangedAt: noon, PlacedAt: &noon},
		Networks: []api.Network{{UID: "u", Name: "c", Cluster: "c", ClusterUID: "u", Index: 7, PKey: 0x12, Cell: "ib0"}},
		Add:      []state.Batch{{Assignments: []api.Assignment{member(0, "n1", "0000000000000011"), member(1, "n2", "0000000000000021")}}},
	}))
	return cache.View()
}

func fabricsOf(l *leaves) Fabrics {
	return Fabrics{"ib0": site.NewKeeper(l, slog.New(slog.DiscardHandler))}
}

func everybody(*api.Network) bool { return true }

func TestACellShowsPartitionsToThoseWhoMaySeeThem(t *testing.T) {
	t.Parallel()
	view, fabrics := onFabric(t), fabricsOf(&leaves{Site: fake.NewSite(&fake.Tables{})})
	fabrics["ib0"].Chart().Survey(t.Context())
	got, err := fabrics.Cell(view, "ib0", everybody)
	if err != nil {
		t.Fatal(err)
	}
	want := []api.FabricPartition{{Number: 0x12, Network: "c", Members: 2, Ports: []string{"0000000000000011", "0000000000000021"}}}
	if diff := cmp.Diff(want, got.Partitions); diff != "" {
		t.Errorf("partitions (-want +got)\n%s", diff)
	}
	if len(got.Nodes) != 4 || got.Nodes[0].Switch != "a" || got.Nodes[0].RateBitsPerSecond != 200e9 || got.Switches != 2 || got.Links != 5 {
		t.Errorf("got %+v", got)
	}
	if other, err := fabrics.Cell(view, "ib0", func(*api.Network) bool { return false }); err != nil || len(other.Partitions) != 0 || len(other.Nodes) != 4 {
		t.Errorf("another tenant sees %+v, %v", other.Partitions, err)
	}
	ethernet, err := fabrics.Cell(view, api.EthernetCell, everybody)
	if err != nil || len(ethernet.Nodes) != 4 || len(ethernet.Partitions) != 0 || ethernet.Nodes[0].RateBitsPerSecond != 25e9 {
		t.Errorf("ethernet: %+v, %v", ethernet, err)
	}
	if _, err := fabrics.Cell(view, "ib7", everybody); !errors.Is(err, ErrNoFabric) {
		t.Errorf("ib7: %v", err)
	}
}

func TestAnAuditListsWhatIsNotAsItShouldBe(t *testing.T) {
	t.Parallel()
	var tables fake.Tables
	view, fabrics := onFabric(t), fabricsOf(&leaves{Site: fake.NewSite(&tables)})
	tables.Plant(0x12, "0000000000000011")
	tables.Plant(0x12, "0000000000000031")
	tables.Plant(0x99, "0000000000000041")
	tables.Blind("0000000000000041", "it does not answer")
	got, err := fabrics.Audit(t.Context(), view, "ib0", noon)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"port 0000000000000031 is in network 18 (c), and no member holds it there",
		"port 0000000000000021 is not in network 18 (c), and is to be",
	}
	if diff := cmp.Diff(want, got.Drift); diff != "" {
		t.Errorf("drift (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"port 0000000000000041: it does not answer"}, got.Unknown); diff != "" {
		t.Errorf("unknown (-want +got)\n%s", diff)
	}
	tables.Blind("0000000000000041", "")
	if got, _ := fabrics.Audit(t.Context(), view, "ib0", noon); !slices.Contains(got.Drift, "port 0000000000000041 is in network 153, which no member of this site holds") {
		t.Errorf("drift %v", got.Drift)
	}
	if _, err := fabrics.Audit(t.Context(), view, api.EthernetCell, noon); !errors.Is(err, ErrUnaudited) || !strings.Contains(err.Error(), "network check") {
		t.Errorf("ethernet: %v", err)
	}
}

func TestPlacementFollowsTheChartsOfFabrics(t *testing.T) {
	t.Parallel()
	l := &leaves{Site: fake.NewSite(&fake.Tables{})}
	view, fabrics := onFabric(t), fabricsOf(l)
	room := Room{Offers: offer.Site{Fabrics: fabrics.Names()}, Fabrics: fabrics}
	place := func(size int) string {
		t.Helper()
		free, err := room.Update(view, func(string) placement.Availability { return placement.Schedulable })
		if err != nil {
			t.Fatal(err)
		}
		placed, refusal := placement.Place(free, placement.Request{Cluster: "d", Groups: []api.Group{{
			Name: "d", Size: size, Shape: api.Shape{Cores: 1}, Stack: api.StackContainer, Environment: "local", Interconnect: api.Interconnect{Technology: api.FabricInfiniBand},
		}}})
		if refusal != nil {
			return refusal.Message
		}
		var nodes []string
		for _, p := range placed {
			nodes = append(nodes, p.Node)
		}
		return strings.Join(slices.Compact(nodes), " ")
	}
	if got := place(1); !strings.Contains(got, "no node is there with a port in a cell as requested: infiniband") {
		t.Errorf("before the first survey: %s", got)
	}
	fabrics["ib0"].Chart().Survey(t.Context())
	// A core is free on each of n1 and n2, under a, and two are on each of n3 and n4, under b.
	if got := place(3); got != "n3 n4" {
		t.Errorf("three members are on %s, want them under one leaf", got)
	}
	if got := place(1); got != "n1" {
		t.Errorf("one member is on %s, want the fullest node", got)
	}
	l.errors = 1000
	fabrics["ib0"].Chart().Survey(t.Context())
	if got := place(1); got != "n2" {
		t.Errorf("one member is on %s, and the link of n1 is bad", got)
	}
}
