package placement

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestNodesOfVolumesHaveAddressesThatNoMemberHas(t *testing.T) {
	own := api.Network{UID: "c1", ClusterUID: "c1", Name: "c1", Index: 7, Prefix: netip.MustParsePrefix("10.64.0.0/29"), Gateway: netip.MustParseAddr("10.64.0.1")}
	member := func(id, address string, claims ...api.VolumeClaim) api.Assignment {
		return api.Assignment{ID: id, ClusterUID: "c1", Ports: []api.PortClaim{{Network: "c1", Address: netip.MustParseAddr(address)}}, Volumes: claims}
	}
	claims := func(nodes ...string) (all []api.VolumeClaim) {
		for _, n := range nodes {
			all = append(all, api.VolumeClaim{UID: "v" + n, Name: "v", Node: n})
		}
		return all
	}
	asked := claims("n1", "n2", "n1")
	fresh := []api.Assignment{member("b", "10.64.0.3")}
	if err := ServeVolumes(asked, &own, []api.Assignment{member("a", "10.64.0.2")}, fresh); err != nil {
		t.Fatal(err)
	}
	if a, b, again := asked[0].Server, asked[1].Server, asked[2].Server; a.String() != "10.64.0.4" || b.String() != "10.64.0.5" || again != a {
		t.Errorf("the servers are %v, %v and %v, want the first free addresses, one for each node", a, b, again)
	}
	if mac := ServerMAC(&own, &asked[0]); mac != MAC(7, 4) {
		t.Errorf("the MAC address is %s", mac)
	}
	// Another member comes, and the servers keep their addresses, which nobody else gets.
	fresh[0].Volumes = asked
	later := claims("n2", "n1")
	if err := ServeVolumes(later, &own, fresh, nil); err != nil || later[0].Server != asked[1].Server || later[1].Server != asked[0].Server {
		t.Errorf("later, the servers are %v and %v (%v)", later[0].Server, later[1].Server, err)
	}
	hosts := freeHosts(&own, fresh)
	for want := range []int{2, 6} {
		host, _ := hosts.Take("next")
		if want = []int{2, 6}[want]; host != want {
			t.Errorf("the next member gets host %d, want %d", host, want)
		}
	}
	full := []api.Assignment{member("a", "10.64.0.2"), member("b", "10.64.0.3"), member("c", "10.64.0.4"), member("d", "10.64.0.5"), member("e", "10.64.0.6")}
	if err := ServeVolumes(claims("n1"), &own, full, nil); err == nil || !strings.Contains(err.Error(), "no free address for node n1") {
		t.Errorf("a full network: %v", err)
	}
}

func TestWholeMachinesReachWhatIsServedToThem(t *testing.T) {
	v := viewOf(t, testNode("n1", 8, 1, 64), testNode("n2", 8, 1, 64)) // whose agents reach nothing
	placed := func(p api.VolumePlace) string {
		g := withVolume(1, p)
		got, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{g}})
		if refusal != nil {
			return refusal.Message
		}
		return got[0].Node
	}
	if got := placed(api.VolumePlace{Volume: "data", Node: "n9", Machines: true}); !strings.Contains(got, "this site does not have") {
		t.Errorf("a volume on a node that is not there: %s", got)
	}
	n := v.volumeNodes(api.VolumePlace{Volume: "data", Node: "n1", Machines: true})
	for id := range v.rows {
		if !n.has(int32(id), &v.rows[id]) {
			t.Errorf("node %d does not reach the volume", id)
		}
	}
	if why := v.unreachable(v.ids["n2"], api.VolumePlace{Volume: "data", Node: "n1", Machines: true}); why != "" {
		t.Errorf("n2 can't reach it: %s", why)
	}
	if why := v.unreachable(v.ids["n2"], api.VolumePlace{Volume: "data", Node: "n1", Problem: "no trunk", Machines: true}); !strings.Contains(why, "no trunk") {
		t.Errorf("of a node that does not serve it: %q", why)
	}
}
