package apiserver_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// withPKeys is a site with partition keys 0x100 to 0x101 in these cells.
func withPKeys(t *testing.T, cells ...string) *apiservertest.Site {
	t.Helper()
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.PKeys, c.Offers.Fabrics = api.PKeyPool{First: 0x100, Last: 0x101}, cells
	})
	s.Project("lab", api.Quota{})
	return s
}

func partition(name string, pkey int) api.NetworkRequest {
	return api.NetworkRequest{Name: name, Technology: api.TechnologyInfiniBand, PKey: pkey}
}

func TestAPartitionIsRefusedWithTheReason(t *testing.T) {
	s := withPKeys(t, "ib0")
	admin, eve := s.Client(), s.ClientAs("eve", "lab", api.RoleMember)
	refused := func(what string, c *client.Client, req api.NetworkRequest, code, want string) {
		t.Helper()
		_, err := c.CreateNetwork(t.Context(), req)
		if text := fmt.Sprintf("%+v", err); !client.HasCode(err, code) || !strings.Contains(text, want) {
			t.Errorf("%s: got %s; want %s, %q", what, text, code, want)
		}
	}
	changed := func(change func(r *api.NetworkRequest)) api.NetworkRequest {
		r := partition("b", 0)
		change(&r)
		return r
	}
	made, err := admin.CreateNetwork(t.Context(), changed(func(r *api.NetworkRequest) {
		r.Name, r.PKey, r.Partition = "a", 0x100, api.Partition{IPoIB: true, IPoIBMode: api.IPoIBConnected, MTUBytes: 4096, RateGbps: 100, ServiceLevel: 3}
	}))
	if err != nil || made.Technology != api.TechnologyInfiniBand || made.Cell != "ib0" || made.PKey != 0x100 || !made.Partition.IPoIB || made.Partition.IPoIBMode != api.IPoIBConnected || made.Partition.ServiceLevel != 3 {
		t.Fatalf("created %+v, %v", made, err)
	}
	refused("a key outside the pool", admin, partition("b", 0x102), "invalid_request", "partition key 0x0102 is not in the site's pool, 0x0100-0x0101")
	refused("the key of the default partition", admin, partition("b", 0x7fff), "invalid_request", "0x7fff is no partition key that a network can have; those are 0x0001 to 0x7fef")
	refused("a key with the membership bit", admin, partition("b", 0x8100), "invalid_request", "without the membership bit")
	refused("a key that is in use", admin, partition("b", 0x100), "pkey_taken", `partition key 0x0100 is in use by network "project/a" of project "default"`)
	_, err = eve.CreateNetwork(t.Context(), partition("b", 0x100))
	if !client.HasCode(err, "pkey_taken") || strings.Contains(err.Error(), "project/a") {
		t.Errorf("another project's network is named: %v", err)
	}
	refused("an unknown cell", admin, changed(func(r *api.NetworkRequest) { r.Cell = "ib7" }), "invalid_request", `"ib7" is no cell of an InfiniBand fabric that this site controls; those are: ib0`)
	refused("a key of a network of tunnels", admin, api.NetworkRequest{Name: "b", PKey: 0x100}, "invalid_request", "is for networks of technology infiniband only")
	refused("a cell of a network of tunnels", admin, api.NetworkRequest{Name: "b", Cell: "ib0"}, "invalid_request", "is for networks of technology infiniband only")
	refused("a partition of a network of tunnels", admin, api.NetworkRequest{Name: "b", Partition: api.Partition{IPoIB: true}}, "invalid_request", "is for networks of technology infiniband only")
	refused("egress", admin, changed(func(r *api.NetworkRequest) { r.Egress = true }), "invalid_request", "is not possible on InfiniBand")
	refused("routes", admin, changed(func(r *api.NetworkRequest) { r.Routed = true }), "invalid_request", "is not possible on InfiniBand")
	refused("IPv6", admin, changed(func(r *api.NetworkRequest) { r.IPv6 = true }), "invalid_request", "is not possible on InfiniBand")
	refused("an MTU of Ethernet", admin, changed(func(r *api.NetworkRequest) { r.MTU = 1500 }), "invalid_request", "write partition.mtu_bytes")
	refused("an MTU that no port has", admin, changed(func(r *api.NetworkRequest) { r.Partition = api.Partition{IPoIB: true, MTUBytes: 1500} }), "invalid_request", "1500 is not an MTU of partitions in bytes; those are 256, 512, 1024, 2048 and 4096")
	refused("a rate that no port has", admin, changed(func(r *api.NetworkRequest) { r.Partition = api.Partition{IPoIB: true, RateGbps: 99} }), "invalid_request", "99 is not a rate of partitions")
	refused("a service level of 5 bits", admin, changed(func(r *api.NetworkRequest) { r.Partition = api.Partition{ServiceLevel: 16} }), "invalid_request", "16 is too large; the limit is 15")
	refused("an unknown mode of IP", admin, changed(func(r *api.NetworkRequest) { r.Partition = api.Partition{IPoIB: true, IPoIBMode: "fast"} }), "invalid_request", `"fast" is not a mode of IP over InfiniBand`)
	refused("a mode without IP", admin, changed(func(r *api.NetworkRequest) { r.Partition = api.Partition{IPoIBMode: api.IPoIBConnected} }), "invalid_request", "must be true for a mode of IP over InfiniBand")
	refused("an MTU without IP", admin, changed(func(r *api.NetworkRequest) { r.Partition = api.Partition{MTUBytes: 2048} }), "invalid_request", "must be true for an MTU or a rate")
	if _, err := eve.CreateNetwork(t.Context(), partition("b", 0x101)); err != nil {
		t.Fatal(err)
	}
	refused("a key where all are in use", admin, partition("c", 0), "no_infiniband", "all partition keys of the site's pool, 0x0100-0x0101, are in use")
	refused("several cells and none named", withPKeys(t, "ib1", "ib0").Client(), partition("a", 0), "invalid_request", "is missing; the site has several: ib0, ib1")
	refused("a site without a fabric", withPKeys(t).Client(), partition("a", 0), "no_infiniband", "this site's servers control no InfiniBand fabric")
	refused("a site without a pool", twoProjects(t).Client(), partition("a", 0), "no_infiniband", "start its servers with --pkey-pool")
}

func TestAPartitionKeyOfTheOperatorsIsRefusedAtCreation(t *testing.T) {
	tables := &fake.Tables{}
	executor := fake.NewSite(tables)
	tables.Own(0x100)
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.PKeys, c.Offers.Fabrics = api.PKeyPool{First: 0x100, Last: 0x101}, []string{"ib0"}
		c.Fabrics = situation.Fabrics{"ib0": site.NewKeeper(executor, slog.New(slog.DiscardHandler))}
	})
	_, err := s.Client().CreateNetwork(t.Context(), partition("a", 0x100))
	if !client.HasCode(err, "pkey_taken") || !strings.Contains(err.Error(), "network 256 is the operator's; choose another partition key") {
		t.Errorf("the operator's key: %v", err)
	}
	if _, err := s.Client().CreateNetwork(t.Context(), partition("a", 0x101)); err != nil {
		t.Errorf("another key: %v", err)
	}
	executor.Fail("Check", errors.New("own.conf: line 3: there is no colon"))
	_, err = s.Client().CreateNetwork(t.Context(), partition("b", 0))
	if !client.HasCode(err, "no_infiniband") || !strings.Contains(err.Error(), "fabric ib0 takes no networks now: own.conf: line 3") {
		t.Errorf("a fabric whose operator's file is damaged: %v", err)
	}
}
