package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestFabricsAreListedShownDrawnAndAudited(t *testing.T) {
	f := newFake(t)
	read := t0
	ib := api.Fabric{
		Name: "ib0", Technology: api.FabricInfiniBand, ReadAt: &read, Switches: 1, Links: 1, Nodes: []api.FabricNode{{Node: "n1", At: "0000000000000011", Switch: "a", SwitchPort: "1", RateBitsPerSecond: 200e9}},
		Managers:   []api.SubnetManager{{GUID: "0000000000000011", Node: "n1", Priority: 5, State: "master"}},
		Partitions: []api.FabricPartition{{Number: 18, Network: "c1", Members: 1, Ports: []string{"0000000000000011"}, LoadBitsPerSecond: 1_500_000_000}},
		Faults:     []api.FabricFault{{Message: "link between switch a port 1 and node n1: 120 symbol errors in 60 s", Nodes: []string{"n1"}, Since: t0, LastSeenAt: t0}},
	}
	f.fixed("GET /v1/fabrics", api.List[api.Fabric]{Items: []api.Fabric{{Name: "ethernet", Technology: api.FabricEthernet}, ib}})
	f.fixed("GET /v1/fabrics/ib0", ib)
	f.fixed("GET /v1/fabrics/ib0/topology", api.FabricTopology{
		Fabric: "ib0", Technology: api.FabricInfiniBand, Switches: []api.FabricSwitch{{ID: "a0", Name: "a", Ports: 36}}, Hosts: []api.FabricHost{{ID: "10", Name: "n1", Node: "n1"}},
		Links: []api.FabricLink{{
			From: api.FabricEnd{ID: "a0", Name: "a", Port: "1", Errors: map[string]int64{"SymbolErrorCounter": 120}}, To: api.FabricEnd{ID: "10", Name: "n1", Host: true, Port: "1", At: "0000000000000011"},
			Width: "4x", Speed: "HDR", RateBitsPerSecond: 200e9, Fault: ib.Faults[0].Message,
		}},
	})
	f.fixed("GET /v1/fabrics/ib0/audit", api.FabricAudit{Fabric: "ib0", Ports: 2, Drift: []string{"port 31 is in network 18 (c1), and no member holds it there"}})
	f.fixed("GET /v1/fabrics/ib0/events", api.List[api.Event]{Items: []api.Event{{Seq: 1, Time: t0, Fabric: "ib0", Reason: api.ReasonAlarm, Alarm: "no_master", Message: "the fabric has no master subnet manager"}}})
	s := f.shell()
	has(t, s.run(t, "fabric", "events", "ib0"), 0, "Alarm   no_master  the fabric has no master subnet manager")
	has(t, s.run(t, "fabric", "list"), 0, "ethernet  ethernet", "ib0       infiniband  1         1      1      1           n1       1       0")
	has(t, s.run(t, "fabric", "show", "ib0"), 0, "Fault: link between switch a port 1 and node n1: 120 symbol errors in 60 s", "0000000000000011  n1    5         master",
		"n1    0000000000000011  a       1            200Gbit  0", "18      c1", "1.5 Gbit/s")
	has(t, s.run(t, "fabric", "topology", "ib0"), 0, "a       a0  0      0", "SymbolErrorCounter 120", "120 symbol errors in 60 s")
	has(t, s.run(t, "fabric", "topology", "ib0", "-o", "json"), 0, `"speed": "HDR"`)
	picture := filepath.Join(t.TempDir(), "ib0.svg")
	has(t, s.run(t, "fabric", "topology", "ib0", "--svg", picture), 0)
	if text, err := os.ReadFile(picture); err != nil || !strings.HasPrefix(string(text), "<svg ") || !strings.Contains(string(text), "c1 (18)") {
		t.Errorf("the picture is %.60s, %v", text, err)
	}
	has(t, s.run(t, "fabric", "audit", "ib0"), cli.ExitFailed, "drift: port 31 is in network 18 (c1)", "differs from what it should have")
}

func TestAClusterAsksForAnInterconnect(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/clusters", api.Cluster{Name: "c1", Spec: api.ClusterSpec{Groups: []api.Group{{Name: "c1", Size: 1}}}})
	has(t, f.shell().run(t, "cluster", "create", "c1", "--interconnect", "infiniband", "--min-rate", "100Gbit", "--rdma", "--no-wait"), 0)
	if got := f.requests()[0]; !strings.Contains(got, `"interconnect":{"technology":"infiniband","min_rate":"100Gbit","rdma":true}`) {
		t.Errorf("asked %s", got)
	}
	has(t, f.shell().run(t, "cluster", "create", "c1", "--interconnect", "myrinet", "--no-wait"), cli.ExitUsage, "is not the technology of a fabric")
	has(t, f.shell().run(t, "cluster", "create", "c1", "--min-rate", "fast", "--no-wait"), cli.ExitUsage, "--min-rate")
}
