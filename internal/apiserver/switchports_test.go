package apiserver_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// newSwitchedSite is a site whose switch has the ports a and b, and m to boot from.
func newSwitchedSite(t *testing.T) *apiservertest.Site {
	t.Helper()
	return apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.VLANs = api.VLANPool{First: 100, Last: 109}
		c.Offers.Switches = map[string]map[string]bool{"lan": {"sw/a": false, "sw/b": false, "sw/m": true}}
	})
}

func TestSwitchPortsThatAMachineCanNotHaveAreRefused(t *testing.T) {
	s := newSwitchedSite(t)
	enroll := func(name string, number int, ports string) (int, string) {
		resp := send(t, s, request{method: "POST", path: "/v1/nodes", body: fmt.Sprintf(
			`{"name": %q, "spec": {"macs": ["52:54:00:00:00:%02x"], "power": {"kind": "wol"}, "switch_ports": [%s]}}`, name, number, ports)})
		defer resp.Body.Close()
		return resp.StatusCode, bodyOf(t, resp)
	}
	port := func(mac, cell, at string) string {
		return fmt.Sprintf(`{"mac": %q, "cell": %q, "port": %q}`, mac, cell, at)
	}
	const mac, other = "52:54:00:00:01:01", "52-54-00-00-01-02"
	if code, text := enroll("n1", 1, port(mac, "lan", "sw/a")+", "+port(other, "lan", "sw/m")); code != http.StatusCreated || !strings.Contains(text, "52:54:00:00:01:02") {
		t.Fatalf("%d: %s", code, text)
	}
	for ports, want := range map[string]string{
		port(mac, "lan", "sw/a"):                                     `is the port of machine \"n1\" already`,
		port(mac, "lan", "sw/z"):                                     "the settings of cell lan name no port sw/z",
		port(mac, "wan", "sw/a"):                                     "the site manages no switches of cell wan; start its servers with --ethernet wan=FILE",
		port(mac, "lan", "a"):                                        `\"a\" is no port of a switch; write SWITCH/PORT`,
		port("x", "lan", "sw/b"):                                     `\"x\" is not a MAC address`,
		port(mac, "LAN", "sw/b"):                                     "is not a DNS label",
		port(mac, "lan", "sw/b") + ", " + port(mac, "lan", "sw/m"):   "names a NIC or a port that is listed before",
		port(mac, "lan", "sw/b") + ", " + port(other, "lan", "sw/b"): "names a NIC or a port that is listed before",
	} {
		if code, text := enroll("n2", 2, ports); code < 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d: %s; want %q", ports, code, text, want)
		}
	}
	change := func(name, patch string) (int, string) {
		resp := send(t, s, request{method: "PATCH", path: "/v1/nodes/" + name, body: patch})
		defer resp.Body.Close()
		return resp.StatusCode, bodyOf(t, resp)
	}
	if code, text := enroll("n2", 2, port(mac, "lan", "sw/b")); code != http.StatusCreated {
		t.Fatalf("%d: %s", code, text)
	}
	if code, text := change("n2", `{"spec": {"switch_ports": [`+port(mac, "lan", "sw/a")+`]}}`); code < 400 || !strings.Contains(text, `is the port of machine \"n1\" already`) {
		t.Errorf("%d: %s", code, text)
	}
	if code, text := change("n1", `{"spec": {"switch_ports": []}}`); code != http.StatusOK {
		t.Errorf("%d: %s", code, text)
	}
	if code, text := change("n2", `{"spec": {"switch_ports": [`+port(mac, "lan", "sw/a")+`]}}`); code != http.StatusOK {
		t.Errorf("%d: %s", code, text)
	}
}

func TestAClusterOfWholeMachinesIsOnAVLANWhereSwitchesAreManaged(t *testing.T) {
	for _, tt := range []struct {
		name string
		site *apiservertest.Site
		req  api.ClusterRequest
		want api.Technology
	}{
		{"whole machines", newSwitchedSite(t), api.ClusterRequest{Stack: api.StackMetal}, api.TechnologyVLAN},
		{"whole machines that ask for tunnels", newSwitchedSite(t), api.ClusterRequest{Stack: api.StackMetal, Technology: api.TechnologyVXLAN}, api.TechnologyVXLAN},
		{"containers", newSwitchedSite(t), api.ClusterRequest{}, ""},
		{"both", newSwitchedSite(t), api.ClusterRequest{Groups: []api.Group{{Name: "a", Stack: api.StackMetal}, {Name: "b"}}}, ""},
		{"whole machines with egress", newSwitchedSite(t), api.ClusterRequest{Stack: api.StackMetal, Egress: true}, ""},
		{"whole machines without switches", apiservertest.New(t, memory.New(), nil), api.ClusterRequest{Stack: api.StackMetal}, ""},
	} {
		tt.req.Name = "c"
		got, err := tt.site.Client().CreateCluster(t.Context(), tt.req)
		if err != nil || got.Spec.Technology != tt.want {
			t.Errorf("%s: technology %q, %v; want %q", tt.name, got.Spec.Technology, err, tt.want)
		}
	}
}

func TestWhatNoNodeEnforcesIsRefusedOnAWholeMachinesVLAN(t *testing.T) {
	s := newSwitchedSite(t)
	c := s.Client()
	for _, n := range []api.NetworkRequest{{Name: "wire", Technology: api.TechnologyVLAN}, {Name: "out", Technology: api.TechnologyVLAN, Egress: true}} {
		if _, err := c.CreateNetwork(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for want, on := range map[string]api.GroupNetwork{
		"":                               {Name: "project/wire"},
		"can't be on a VLAN with egress": {Name: "project/out"},
		"has a DSCP, which nodes can't enforce on the port of a whole machine, whose": {Name: "project/wire", Quality: api.Quality{DSCP: "10"}},
	} {
		_, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c" + fmt.Sprint(len(want)), Stack: api.StackMetal, Networks: []api.GroupNetwork{on}})
		if (err == nil) != (want == "") || err != nil && (!client.HasCode(err, "invalid_cluster") || !strings.Contains(fmt.Sprintf("%+v", err), want)) {
			t.Errorf("%+v: got %+v; want %q", on, err, want)
		}
	}
}

func bodyOf(t *testing.T, resp *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWholeMachinesHaveVolumesOverAVLANOnly(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.Offers.Metal, c.VLANs = true, api.VLANPool{First: 100, Last: 109}
		c.Offers.Switches = map[string]map[string]bool{"lan": {"sw/a": false}}
	})
	shared := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Offers.Metal, c.UserHomes = true, true })
	metal := func(change func(*api.ClusterRequest)) api.ClusterRequest {
		req := api.ClusterRequest{Stack: api.StackMetal}
		change(&req)
		return req
	}
	volume := metal(func(r *api.ClusterRequest) { r.Volumes = []api.VolumeAttachment{{Name: "data"}} })
	home := metal(func(r *api.ClusterRequest) { r.Home = api.ClusterHome{Kind: api.HomeOfUser} })
	sized := metal(func(r *api.ClusterRequest) { r.Home = api.ClusterHome{Size: 1 << 30} })
	for i, tt := range []struct {
		site *apiservertest.Site
		req  api.ClusterRequest
		at   string
	}{
		{s, volume, ""},
		{s, home, ""},
		{s, sized, ""},
		{shared, volume, "volumes[0]"},
		{shared, home, "home"},
		{shared, sized, "home"},
		{s, metal(func(r *api.ClusterRequest) { r.Technology, r.Volumes = api.TechnologyVXLAN, volume.Volumes }), "volumes[0]"},
		{shared, metal(func(r *api.ClusterRequest) { r.Home = api.ClusterHome{Kind: api.HomeNone} }), ""},
		{shared, metal(func(*api.ClusterRequest) {}), ""}, // whose home is its own, whatever the site's default
	} {
		if i == 0 {
			if _, err := s.Client().CreateVolume(t.Context(), api.VolumeRequest{Name: "data", Size: 64 << 20}); err != nil {
				t.Fatal(err)
			}
		}
		tt.req.Name = "c" + fmt.Sprint(i)
		_, err := tt.site.Client().CreateCluster(t.Context(), tt.req)
		if tt.at == "" {
			if err != nil {
				t.Errorf("%+v: %v", tt.req, err)
			}
			continue
		}
		if !client.HasCode(err, "invalid_cluster") || !strings.Contains(fmt.Sprintf("%+v", err), tt.at) || !strings.Contains(fmt.Sprintf("%+v", err), "over a VLAN that the site's switches make") {
			t.Errorf("%+v: got %+v, want a refusal of %s", tt.req, err, tt.at)
		}
	}
}

func TestTheHomeOfAUserReachesWholeMachinesByDefaultWhereANodeServesIt(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.Offers.Metal, c.UserHomes, c.VLANs = true, true, api.VLANPool{First: 100, Last: 109}
		c.Offers.Switches = map[string]map[string]bool{"lan": {"sw/a": false}}
	})
	home := func(name string) string {
		got, err := s.Client().CreateCluster(t.Context(), api.ClusterRequest{Name: name, Stack: api.StackMetal})
		if err != nil {
			t.Fatal(err)
		}
		return got.Spec.Home.Kind
	}
	if kind := home("before"); kind != "" {
		t.Errorf("without a node that serves machines the home is %q", kind)
	}
	s.AddServingNode("n1")
	if kind := home("after"); kind != api.HomeOfUser {
		t.Errorf("with a node that serves machines the home is %q", kind)
	}
}
