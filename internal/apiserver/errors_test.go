package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/trust"
)

var update = flag.Bool("update", false, "write generated pages instead of comparing")

func TestTheErrorPageIsFresh(t *testing.T) {
	const page = "../../docs/api-errors.md"
	got := apiserver.ErrorPage()
	if *update {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/api-errors.md is stale; run: go test ./internal/apiserver -run ErrorPage -update\n%s", diff)
	}
}

// request is one HTTP request of a test.
type request struct {
	method, path string
	header       map[string]string
	body         string
}

// send makes a request over the Unix socket, as the owner.
func send(t *testing.T, s *apiservertest.Site, r request) *http.Response {
	t.Helper()
	return sendBy(t, &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.Socket())
		},
	}}, "http://localhost", r)
}

// sendTCP makes a request over TLS with a token of a role ("": none).
func sendTCP(t *testing.T, s *apiservertest.Site, role trust.Role, r request) *http.Response {
	t.Helper()
	token, err := trust.ReadToken(s.TokenFile())
	if err != nil {
		t.Fatal(err)
	}
	config := trust.ClientTLS(token.Pin, "127.0.0.1")
	switch role {
	case trust.RoleAgent:
		config = s.NodeTLS("agent-1")
	case trust.RoleAdmin:
		if r.header == nil {
			r.header = map[string]string{}
		}
		r.header["Authorization"] = "Bearer " + token.Bearer()
	}
	return sendBy(t, &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true,
	}}, "https://"+s.Addr, r)
}

// sendNode sends a request in the name of a node.
func sendNode(t *testing.T, s *apiservertest.Site, config *tls.Config, r request) *http.Response {
	t.Helper()
	return sendBy(t, &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}, "https://"+s.Addr, r)
}

// endedNodes finds each certificate at its end.
type endedNodes struct{ apiserver.Nodes }

func (endedNodes) Admit(context.Context, *x509.Certificate) (tenancy.Principal, error) {
	return tenancy.Principal{}, fmt.Errorf("%w: yesterday", trust.ErrEnded)
}

// enrollmentOf is the body by which another node of a name enrolls.
func enrollmentOf(t *testing.T, name string) string {
	t.Helper()
	identity, err := trust.NewIdentity(name)
	if err != nil {
		t.Fatal(err)
	}
	request, err := identity.Request()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(api.NodeEnrollment{Name: name, Request: request})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sendBy(t *testing.T, c *http.Client, base string, r request) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), r.method, base+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	t.Cleanup(func() {
		resp.Body.Close()
		c.CloseIdleConnections()
	})
	return resp
}

// problemOf reads a problem and checks the rules that all problems keep.
func problemOf(t *testing.T, resp *http.Response) api.Problem {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p api.Problem
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatalf("the answer %s is no problem: %s", resp.Status, data)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("%s: Content-Type %q", p.Code, ct)
	}
	if p.Status != resp.StatusCode || p.Title == "" || p.Detail == "" || p.Type != "urn:nearmetal:problem:"+p.Code {
		t.Errorf("incomplete problem with status %d: %+v", resp.StatusCode, p)
	}
	return p
}

// brokenWriter fails every write.
type brokenWriter struct {
	apiserver.Writer
	err error
}

func (w brokenWriter) CreateCluster(context.Context, api.ClusterIntent) (int64, error) {
	return 0, w.err
}

// errorCase is a request and the problem that answers it.
type errorCase struct {
	code, detail string
	resp         func() *http.Response
}

// TestEveryDocumentedErrorOccurs makes every code of the table occur over HTTP, and no other.
func TestEveryDocumentedErrorOccurs(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Offers.Metal = true })
	s.AddNode("n1", 4)
	const c1 = `{"name": "c1"}`
	if resp := send(t, s, request{method: "POST", path: "/v1/clusters", body: c1}); resp.StatusCode != http.StatusCreated {
		t.Fatalf("create: %s", resp.Status)
	}
	if resp := send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name": "ready"}`}); resp.StatusCode != http.StatusCreated {
		t.Fatalf("create: %s", resp.Status)
	}
	s.Place("ready")
	s.MakeReady("ready")
	var stored api.Job
	resp := send(t, s, request{method: "POST", path: "/v1/clusters/ready/jobs", body: `{"command": ["true"]}`})
	if err := json.NewDecoder(resp.Body).Decode(&stored); err != nil || stored.ID == "" {
		t.Fatalf("create a job: %s, %v", resp.Status, err)
	}
	job := stored.ID
	failing := func(err error) *apiservertest.Site {
		return apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Writer = brokenWriter{c.Writer, err} })
	}
	outward := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.FloatingPool = floatingPool(t) })
	wired, fabric := withVLANs(t, nil), withPKeys(t, "ib0")
	tests := []errorCase{
		{"malformed_request", "line 2", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: "{\"name\":\n]"})
		}},
		{"malformed_request", "empty", func() *http.Response { return send(t, s, request{method: "POST", path: "/v1/clusters"}) }},
		{"invalid_parameter", "header.Last-Event-ID", func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/watch", header: map[string]string{"Last-Event-ID": "x"}})
		}},
		{"invalid_parameter", "query.after", func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/clusters/c1/events?after=-1"})
		}},
		{"invalid_parameter", "query.follow", func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/jobs/" + job + "/log?follow=maybe"})
		}},
		{"invalid_parameter", "query.offset", func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/jobs/" + job + "/log?offset=x"})
		}},
		{"unauthorized", "no bearer token", func() *http.Response {
			return sendTCP(t, s, "", request{method: "GET", path: "/v1/clusters"})
		}},
		{"unauthorized", "not known", func() *http.Response {
			return sendTCP(t, s, "", request{method: "GET", path: "/v1/clusters", header: map[string]string{"Authorization": "Bearer nm1.x"}})
		}},
		{"forbidden", `the certificate of node "agent-1" is for its agent only`, func() *http.Response {
			return sendTCP(t, s, trust.RoleAgent, request{method: "GET", path: "/v1/clusters"})
		}},
		{"forbidden", "which show a certificate of this site", func() *http.Response {
			return sendTCP(t, s, trust.RoleAdmin, request{method: "POST", path: "/agent/v5/stream"})
		}},
		{"no_such_path", "/v2", func() *http.Response { return send(t, s, request{method: "GET", path: "/v2"}) }},
		{"cluster_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "DELETE", path: "/v1/clusters/nix"}) }},
		{"cluster_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "GET", path: "/v1/clusters/nix/watch"}) }},
		{"cluster_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "GET", path: "/v1/clusters/nix/events"}) }},
		{"job_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "POST", path: "/v1/jobs/nix/cancel"}) }},
		{"job_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "GET", path: "/v1/jobs/nix/log"}) }},
		{"node_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "GET", path: "/v1/nodes/nix"}) }},
		{"security_group_not_found", `"none" does not exist`, func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/security-groups/none"})
		}},
		{"unknown_security_group", `a rule names security group "none"`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/security-groups", body: `{"name":"web","rules":["in any from group none"]}`})
		}},
		{"security_group_exists", `"web" already exists`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/security-groups", body: `{"name":"web"}`})
			return send(t, s, request{method: "POST", path: "/v1/security-groups", body: `{"name":"web"}`})
		}},
		{"security_group_in_use", `rules of 1 security group (db)`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/security-groups", body: `{"name":"db","rules":["in any from group web"]}`})
			return send(t, s, request{method: "DELETE", path: "/v1/security-groups/web"})
		}},
		{"too_many_security_groups", `has 32 security groups`, func() *http.Response {
			for i := range 30 {
				send(t, s, request{method: "POST", path: "/v1/security-groups", body: fmt.Sprintf(`{"name":"group%d"}`, i)})
			}
			return send(t, s, request{method: "POST", path: "/v1/security-groups", body: `{"name":"more"}`})
		}},
		{"dataset_not_found", `"none" does not exist`, func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/datasets/none"})
		}},
		{"unknown_dataset", `dataset "none" of group "reader"`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name":"reader","datasets":["none"]}`})
		}},
		{"unfit_dataset", `can't be read so (cached): file run1.root is at 192.0.2.1, whose certificate`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/datasets", body: strings.ReplaceAll(datasetText("web"), "data.example", "192.0.2.1")})
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name":"reader","datasets":["web:cached"]}`})
		}},
		{"dataset_exists", `"events" already exists`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/datasets", body: datasetText("events")})
			return send(t, s, request{method: "POST", path: "/v1/datasets", body: datasetText("events")})
		}},
		{"dataset_in_use", `by 1 cluster (reader)`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name":"reader","datasets":["events"]}`})
			return send(t, s, request{method: "DELETE", path: "/v1/datasets/events"})
		}},
		{"replica_in_use", `members on n1 have dataset "events"`, func() *http.Response {
			s.Live.SayDatasets(plan.Node{Name: "n1", States: []dataset.State{{UID: s.Cache.View().Dataset("events").UID, Whole: true, InUse: true}}})
			return send(t, s, request{method: "POST", path: "/v1/datasets/events/evict", body: `{}`})
		}},
		{"too_many_datasets", `has 64 datasets`, func() *http.Response {
			for i := range 63 {
				send(t, s, request{method: "POST", path: "/v1/datasets", body: datasetText(fmt.Sprint("set", i))})
			}
			return send(t, s, request{method: "POST", path: "/v1/datasets", body: datasetText("more")})
		}},
		{"no_floating_pool", `--floating-pool PREFIX`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/addresses", body: `{}`})
		}},
		{"volume_not_found", `"none" does not exist`, func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/volumes/none"})
		}},
		{"volume_exists", `"data" already exists`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/volumes", body: `{"name":"data","size":"1GiB"}`})
			return send(t, s, request{method: "POST", path: "/v1/volumes", body: `{"name":"data","size":"1GiB"}`})
		}},
		{"volume_snapshot_not_found", `no snapshot "none"`, func() *http.Response {
			return send(t, s, request{method: "DELETE", path: "/v1/volumes/data/snapshots/none"})
		}},
		{"volume_snapshot_exists", `has a snapshot "s0" already`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/volumes/data/snapshots", body: `{"name":"s0"}`})
			return send(t, s, request{method: "POST", path: "/v1/volumes/data/snapshots", body: `{"name":"s0"}`})
		}},
		{"too_many_volume_snapshots", `has 32 snapshots`, func() *http.Response {
			for i := range 32 {
				send(t, s, request{method: "POST", path: "/v1/volumes/data/snapshots", body: fmt.Sprintf(`{"name":"s%d"}`, i)})
			}
			return send(t, s, request{method: "POST", path: "/v1/volumes/data/snapshots", body: `{"name":"more"}`})
		}},
		{"volume_restoring", `being restored from snapshot "s0"`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/volumes/data/snapshots/s0/restore"})
			return send(t, s, request{method: "DELETE", path: "/v1/volumes/data/snapshots/s0"})
		}},
		{"volume_importing", `"awaited" waits for a backup`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/volumes", body: `{"name":"awaited","size":"1GiB","from_backup":true}`})
			return send(t, s, request{method: "POST", path: "/v1/volumes/awaited/snapshots", body: `{"name":"s0"}`})
		}},
		{"volume_is_block", `"disk" is a block volume, and backups contain files`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/volumes", body: `{"name":"disk","size":"1GiB","kind":"block"}`})
			return send(t, s, request{path: "/v1/volumes/disk/backup"})
		}},
		{"volume_not_importing", `"data" waits for no backup`, func() *http.Response {
			return send(t, s, request{method: "DELETE", path: "/v1/volumes/data/content"})
		}},
		{"volume_too_full", `holds 512MiB and can't shrink to 256MiB`, func() *http.Response {
			s.AddPool("pool", 4<<30)
			s.PlaceVolume("data", "pool", 512<<20)
			return send(t, s, request{method: "PATCH", path: "/v1/volumes/data", body: `{"size":"256MiB"}`})
		}},
		{"volume_in_use", `it is attached to cluster attached`, func() *http.Response {
			in := api.ClusterIntent{Name: "attached", UID: "attached", CreatedAt: time.Unix(1, 0), Spec: api.ClusterSpec{
				Groups: []api.Group{{Name: "attached", Size: 1}}, Volumes: []api.VolumeAttachment{{Name: "data"}},
			}}
			if _, err := s.Repo.CreateCluster(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			return send(t, s, request{method: "DELETE", path: "/v1/volumes/data"})
		}},
		{"volume_deleted", `undelete gone`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/volumes", body: `{"name":"gone","size":"1GiB"}`})
			send(t, s, request{method: "DELETE", path: "/v1/volumes/gone"})
			return send(t, s, request{method: "PATCH", path: "/v1/volumes/gone", body: `{"size":"2GiB"}`})
		}},
		{"volume_purging", `can't be brought back`, func() *http.Response {
			s.PlaceVolume("gone", "pool", 0)
			v := s.Cache.View().VolumeNamed("gone")
			rec := *v.Record
			rec.Generation, rec.Purging = 2, true
			if _, err := s.Leader.CommitVolume(t.Context(), v, rec, nil); err != nil {
				t.Fatal(err)
			}
			return send(t, s, request{method: "POST", path: "/v1/volumes/gone/undelete"})
		}},
		{"too_many_volumes", `has 256 volumes`, func() *http.Response {
			many := apiservertest.New(t, memory.New(), nil)
			for i := range 256 {
				send(t, many, request{method: "POST", path: "/v1/volumes", body: fmt.Sprintf(`{"name":"v%d","size":"64MiB"}`, i)})
			}
			return send(t, many, request{method: "POST", path: "/v1/volumes", body: `{"name":"more","size":"64MiB"}`})
		}},
		{"unknown_volume", `no such volume: "none"`, func() *http.Response {
			// A volume that goes between the look and the write.
			return send(t, failing(fmt.Errorf("%w: %q", state.ErrNoVolume, "none")), request{method: "POST", path: "/v1/clusters", body: `{"name":"v9"}`})
		}},
		{"floating_address_not_found", `192.0.2.1`, func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/addresses/192.0.2.1"})
		}},
		{"floating_address_taken", `192.0.2.1 is allocated already`, func() *http.Response {
			send(t, outward, request{method: "POST", path: "/v1/addresses", body: `{"address":"192.0.2.1"}`})
			return send(t, outward, request{method: "POST", path: "/v1/addresses", body: `{"address":"192.0.2.1"}`})
		}},
		{"floating_pool_full", `all addresses of the floating pool 192.0.2.0/29 are allocated`, func() *http.Response {
			for range 5 {
				send(t, outward, request{method: "POST", path: "/v1/addresses", body: `{}`})
			}
			return send(t, outward, request{method: "POST", path: "/v1/addresses", body: `{}`})
		}},
		{"no_way_out", `create its cluster with --egress`, func() *http.Response {
			outward.AddNode("n1", 4)
			send(t, outward, request{method: "POST", path: "/v1/clusters", body: `{"name":"closed"}`})
			outward.Place("closed")
			return send(t, outward, request{method: "PUT", path: "/v1/addresses/192.0.2.1/assignment", body: `{"cluster":"closed","member":"closed-0"}`})
		}},
		{"floating_address_assigned", `leads to member open-0`, func() *http.Response {
			send(t, outward, request{method: "POST", path: "/v1/clusters", body: `{"name":"open","egress":true}`})
			outward.Place("open")
			send(t, outward, request{method: "PUT", path: "/v1/addresses/192.0.2.1/assignment", body: `{"cluster":"open","member":"open-0"}`})
			return send(t, outward, request{method: "DELETE", path: "/v1/addresses/192.0.2.1"})
		}},
		{"unknown_network", `project/none`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name":"c8","networks":["project/none"]}`})
		}},
		{"network_exists", `"project/lab" already exists`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/networks", body: `{"name":"lab","prefix":"10.64.128.0/24"}`})
			return send(t, s, request{method: "POST", path: "/v1/networks", body: `{"name":"lab"}`})
		}},
		{"subnet_taken", `10.64.128.0/24 of network "project/lab"`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/networks", body: `{"name":"other","prefix":"10.64.128.128/25"}`})
		}},
		{"no_vlans", `no node has a usable trunk`, func() *http.Response {
			return send(t, wired, request{method: "POST", path: "/v1/networks", body: `{"name":"wire","technology":"vlan"}`})
		}},
		{"vlan_taken", `VLAN 100 is in use by network "project/wire"`, func() *http.Response {
			wired.AddTrunk("n1", api.Trunk{Interface: "eth1", MTU: 1500})
			send(t, wired, request{method: "POST", path: "/v1/networks", body: `{"name":"wire","technology":"vlan","vlan":100}`})
			return send(t, wired, request{method: "POST", path: "/v1/networks", body: `{"name":"other","technology":"vlan","vlan":100}`})
		}},
		{"no_infiniband", `start its servers with --pkey-pool`, func() *http.Response {
			return send(t, wired, request{method: "POST", path: "/v1/networks", body: `{"name":"ib","technology":"infiniband"}`})
		}},
		{"pkey_taken", `partition key 0x0101 is in use by network "project/ib"`, func() *http.Response {
			send(t, fabric, request{method: "POST", path: "/v1/networks", body: `{"name":"ib","technology":"infiniband","pkey":257}`})
			return send(t, fabric, request{method: "POST", path: "/v1/networks", body: `{"name":"other","technology":"infiniband","pkey":257}`})
		}},
		{"network_in_use", `1 cluster (onlab)`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name":"onlab","networks":["project/lab"]}`})
			return send(t, s, request{method: "DELETE", path: "/v1/networks/project%2Flab"})
		}},
		{"address_taken", `10.64.128.9 on network project/lab is taken by group "fixed"`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name":"fixed","networks":[{"name":"project/lab","address":"10.64.128.9"}]}`})
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name":"late","networks":[{"name":"project/lab","address":"10.64.128.9"}]}`})
		}},
		{"too_many_networks", `has 32 networks`, func() *http.Response {
			for i := range 31 {
				send(t, s, request{method: "POST", path: "/v1/networks", body: fmt.Sprintf(`{"name":"net%d"}`, i)})
			}
			return send(t, s, request{method: "POST", path: "/v1/networks", body: `{"name":"more"}`})
		}},
		{"network_not_found", `"nix:x"`, func() *http.Response { return send(t, s, request{method: "GET", path: "/v1/networks/nix:x"}) }},
		{"environment_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "GET", path: "/v1/environments/nix"}) }},
		{"method_not_allowed", "GET", func() *http.Response { return send(t, s, request{method: "PUT", path: "/v1/clusters"}) }},
		{"member_not_found", `"x"`, func() *http.Response { return send(t, s, tunnelRequest("/v1/clusters/ready/members/x/connect")) }},
		{"upgrade_required", "HTTP/1.1", func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/clusters/ready/members/ready-0/connect"})
		}},
		{"invalid_parameter", "query.port", func() *http.Response {
			return send(t, s, tunnelRequest("/v1/clusters/ready/members/ready-0/connect?port=80"))
		}},
		{"member_unreachable", "is asleep", func() *http.Response {
			s.Tunnels.SetBroken(errors.New("its agent is asleep"))
			return send(t, s, tunnelRequest("/v1/clusters/ready/members/ready-0/connect"))
		}},
		{"home_unknown", "is asleep", func() *http.Response {
			s.Homes.Set(api.HomeUsage{}, errors.New("its agent is asleep"))
			return send(t, s, request{method: "GET", path: "/v1/clusters/ready/home"})
		}},
		{"project_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "GET", path: "/v1/projects/nix"}) }},
		{"token_not_found", `"nix"`, func() *http.Response { return send(t, s, request{method: "DELETE", path: "/v1/tokens/nix"}) }},
		{"wrong_phase", "not paused", func() *http.Response { return send(t, s, request{method: "POST", path: "/v1/clusters/ready/resume"}) }},
		{"trace_not_found", `"c1"`, func() *http.Response {
			forgetful := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Traces = noTraces{} })
			if _, err := forgetful.Client().CreateCluster(t.Context(), api.ClusterRequest{Name: "c1"}); err != nil {
				t.Fatal(err)
			}
			return send(t, forgetful, request{method: "GET", path: "/v1/clusters/c1/trace"})
		}},
		{"no_room", "3 cores are missing", func() *http.Response {
			s.Explainer.SetNoRoom(&apiservertest.NoRoom{Reason: "3 cores are missing"})
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/scale", body: `{"size": 4}`})
		}},
		{"over_quota", "quota is 1", func() *http.Response {
			send(t, s, request{method: "PATCH", path: "/v1/projects/default", body: `{"quota": {"members": 1}}`})
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/scale", body: `{"size": 4}`})
		}},
		{"quota_in_use", "512KiB is less than the 512MiB in use", func() *http.Response {
			return send(t, s, request{method: "PATCH", path: "/v1/projects/default", body: `{"quota": {"memory": "512KiB"}}`})
		}},
		{"cant_pause", "its machines stay on", func() *http.Response { return pauseWithout(t, "the end of an archive") }},
		{"cant_save", `has stack "container"`, func() *http.Response { return send(t, s, request{method: "POST", path: "/v1/clusters/ready/save"}) }},
		{"keys_found", "/home/hpc/key", func() *http.Response { return saveFilesOf(t, "fresh") }},
		{"environment_exists", "comes with Nearmetal", func() *http.Response { return saveFilesOf(t, "debian-mpi") }},
		{"cant_reboot", `stack "container"`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/reboot", body: `{}`})
		}},
		{"cant_resize", `stack "container"`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/resize", body: `{"cores": 2}`})
		}},
		{"cant_attach", `"far" lies on node pool, which does not serve it`, func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/volumes", body: `{"name":"far","size":"64MiB"}`})
			s.PlaceVolume("far", "pool", 0)
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/volumes", body: `{"name":"far"}`})
		}},
		{"volume_not_attached", `"none" is not attached to cluster "ready"`, func() *http.Response {
			return send(t, s, request{method: "DELETE", path: "/v1/clusters/ready/volumes/none"})
		}},
		{"cant_add_layer", `belongs to the nodes and has no image`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/layers", body: `{"environment":"local"}`})
		}},
		{"no_network_condition", `run on stack "vm"`, func() *http.Response {
			stack := func(stack api.Stack) {
				if _, _, err := s.Repo.UpdateIntent(t.Context(), "ready", "", func(in *api.ClusterIntent) error { in.Spec.Groups[0].Stack = stack; return nil }); err != nil {
					t.Fatal(err)
				}
			}
			stack(api.StackVM)
			defer stack(api.StackContainer)
			return send(t, s, request{method: "PUT", path: "/v1/clusters/ready/condition", body: `{"delay":"5ms"}`})
		}},
		{"layer_not_found", `has no layer "none"`, func() *http.Response {
			return send(t, s, request{method: "DELETE", path: "/v1/clusters/ready/layers/none"})
		}},
		{"snapshot_not_found", `"nix"`, func() *http.Response {
			return send(t, s, request{method: "DELETE", path: "/v1/clusters/ready/snapshots/nix"})
		}},
		{"snapshot_exists", `"s"`, func() *http.Response {
			s1 := snapshotted(t, 1)
			return send(t, s1, request{method: "POST", path: "/v1/clusters/c1/snapshots", body: `{"name": "s"}`})
		}},
		{"too_many_snapshots", "has 8 snapshots", func() *http.Response {
			s8 := snapshotted(t, api.MaxSnapshots)
			return send(t, s8, request{method: "POST", path: "/v1/clusters/c1/snapshots", body: `{"name": "more"}`})
		}},
		{"cant_restore", "member c1-0 is not in the snapshot", func() *http.Response {
			return send(t, snapshotted(t, 1), request{method: "POST", path: "/v1/clusters/c1/snapshots/s/restore"})
		}},
		{"cant_move", `stack "container"`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/migrate", body: `{}`})
		}},
		{"wrong_phase", "not saved", func() *http.Response { return send(t, s, request{method: "POST", path: "/v1/clusters/ready/restore"}) }},
		{"cant_extend", "no time limit", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/extend", body: `{"time_limit": "4h"}`})
		}},
		{"project_exists", `"default"`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/projects", body: `{"name": "default"}`})
		}},
		{"project_in_use", `"default"`, func() *http.Response { return send(t, s, request{method: "DELETE", path: "/v1/projects/default"}) }},
		{"node_in_use", "in use by", func() *http.Response { return send(t, s, request{method: "DELETE", path: "/v1/nodes/n1"}) }},
		{"network_unchecked", "has no subnet yet", func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/networks/project%2Flab/check"})
		}},
		{"host_unchecked", "the agent is busy", func() *http.Response {
			s.Hosts.Set(api.HostCheck{}, errors.New("the agent is busy"))
			return send(t, s, request{method: "GET", path: "/v1/nodes/n1/host-check"})
		}},
		{"node_unknown", "shows no certificate", func() *http.Response { return send(t, s, request{method: "POST", path: "/agent/v1/renewal"}) }},
		{"node_unknown", "unknown or was revoked", func() *http.Response {
			config := s.NodeTLS("gone")
			if err := s.Client().RevokeNode(t.Context(), "gone"); err != nil {
				t.Fatal(err)
			}
			return sendNode(t, s, config, request{method: "POST", path: "/agent/v1/tunnel/t1"})
		}},
		{"node_pending", "node approve waits", func() *http.Response {
			return sendNode(t, s, s.PendingTLS("waits"), request{method: "POST", path: "/agent/v1/tunnel/t1"})
		}},
		{"certificate_ended", "renew it", func() *http.Response {
			late := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
				c.Nodes = endedNodes{c.Nodes}
			})
			return sendNode(t, late, late.NodeTLS("n1"), request{method: "POST", path: "/agent/v1/tunnel/t1"})
		}},
		{"node_taken", "node revoke n7", func() *http.Response {
			s.NodeTLS("n7")
			return send(t, s, request{method: "POST", path: "/agent/v1/enrollment", body: enrollmentOf(t, "n7")})
		}},
		{"invalid_request", "line 2: size: 0 is too small", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/scale", body: "{\n\"size\": 0}"})
		}},
		{"other_cluster", `"c1"`, func() *http.Response { return send(t, s, request{method: "PUT", path: "/v1/clusters/ready", body: c1}) }},
		{"unchangeable", "groups[ready].cores: is 1 and can't become 2", func() *http.Response {
			return send(t, s, request{method: "PUT", path: "/v1/clusters/ready", body: `{"name": "ready", "cores": 2}`})
		}},
		{"request_timeout", "complete in time", func() *http.Response { return slowBody(t) }},
		{"cluster_exists", "already exists", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: c1})
		}},
		{"cluster_not_ready", "pending", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/c1/jobs", body: `{"command": ["true"]}`})
		}},
		{"history_gone", "without Last-Event-ID", func() *http.Response {
			return send(t, s, request{method: "GET", path: "/v1/watch", header: map[string]string{"Last-Event-ID": "999999"}})
		}},
		{"log_removed", "make room", func() *http.Response {
			job, err := s.Client().CreateJob(t.Context(), "ready", api.JobRequest{Command: []string{"true"}})
			if err != nil {
				t.Fatal(err)
			}
			s.Logs.Removed = map[string]bool{job.ID: true}
			return send(t, s, request{method: "GET", path: "/v1/jobs/" + job.ID + "/log"})
		}},
		{"body_too_large", "longer than", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: strings.Repeat(" ", 300<<10)})
		}},
		{"unsupported_media_type", "text/html", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: c1, header: map[string]string{"Content-Type": "text/html"}})
		}},
		{"invalid_cluster", `did you mean "size"?`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name": "c2", "sise": 1}`})
		}},
		{"invalid_cluster", "groups[1].cores", func() *http.Response {
			return send(t, s, request{
				method: "POST", path: "/v1/clusters", body: "name: c2\ngroups:\n- name: a\n- name: b\n  cores: 0\n",
				header: map[string]string{"Content-Type": "application/yaml"},
			})
		}},
		{"invalid_job", "command", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/jobs", body: `{"ranks": 1}`})
		}},
		{"unknown_environment", `known environments: "local"; did you mean "local"?`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name": "c2", "environment": "locl"}`})
		}},
		{"stack_unavailable", `known stacks: "container"; node "n1" reports: /dev/kvm`, func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name": "c2", "stack": "vm"}`})
		}},
		{"too_many_ranks", "2 ranks are more than the 1 core of", func() *http.Response {
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/jobs", body: `{"command": ["true"], "ranks": 2}`})
		}},
		{"no_agent", `environment "other" of member "foreign-0" is the disk of another system`, func() *http.Response {
			s := apiservertest.New(t, memory.New(), nil)
			s.AddDisk("other")
			if _, err := s.Client().CreateCluster(t.Context(), api.ClusterRequest{Name: "foreign", Stack: api.StackVM, Environment: "other"}); err != nil {
				t.Fatal(err)
			}
			s.AddNode("n1", 2)
			s.Place("foreign")
			s.MakeReady("foreign")
			return send(t, s, request{method: "POST", path: "/v1/clusters/foreign/jobs", body: `{"command": ["true"]}`})
		}},
		{"too_many_jobs", `unfinished jobs, the most it can have`, func() *http.Response {
			submitted(t, s, "ready", 1000)
			return send(t, s, request{method: "POST", path: "/v1/clusters/ready/jobs", body: `{"command": ["true"]}`})
		}},
		{"internal_error", "under request", func() *http.Response {
			return send(t, failing(errors.New("secret detail")), request{method: "POST", path: "/v1/clusters", body: c1})
		}},
		{"unavailable", "closed", func() *http.Response {
			return send(t, failing(store.ErrClosed), request{method: "POST", path: "/v1/clusters", body: c1})
		}},
		{"unavailable", "newer version", func() *http.Response {
			return send(t, failing(state.ErrNewerFormat), request{method: "POST", path: "/v1/clusters", body: c1})
		}},
	}
	tests = append(tests, machineErrors(t)...)
	tests = append(tests, cleanErrors(t)...)
	tests = append(tests, consoleErrors(t, s)...)
	tests = append(tests, shapeErrors(t, s)...)
	tests = append(tests, fabricErrors(t, s)...)
	seen := map[string]bool{}
	for _, tt := range tests {
		p := problemOf(t, tt.resp())
		if p.Code != tt.code || !strings.Contains(p.Detail, tt.detail) {
			t.Errorf("got %s (%s), want %s with %q", p.Code, p.Detail, tt.code, tt.detail)
		}
		if strings.Contains(p.Detail, "secret detail") {
			t.Errorf("%s shows an internal error: %s", p.Code, p.Detail)
		}
		seen[p.Code] = true
	}
	for _, c := range apiserver.Codes() {
		if !seen[c.Code] {
			t.Errorf("code %s is documented but was not made to occur", c.Code)
		}
		delete(seen, c.Code)
	}
	for code := range seen {
		t.Errorf("code %s occurs but is not documented", code)
	}
}

// tunnelRequest asks for a tunnel.
func tunnelRequest(path string) request {
	return request{method: "GET", path: path, header: map[string]string{"Connection": "Upgrade", "Upgrade": "nearmetal-tunnel"}}
}

// slowBody sends a body that never ends to a server that does not wait long.
func slowBody(t *testing.T) *http.Response {
	t.Helper()
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.RequestTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("unix", s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "POST /v1/clusters HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	var answer bytes.Buffer
	if _, err := io.Copy(&answer, conn); err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(answer.String(), "\r\n\r\n")
	resp := &http.Response{StatusCode: http.StatusRequestTimeout, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(rest))}
	for _, line := range strings.Split(head, "\r\n")[1:] {
		k, v, _ := strings.Cut(line, ": ")
		resp.Header.Set(k, v)
	}
	if !strings.Contains(head, "408") {
		t.Errorf("answer: %s", head)
	}
	return resp
}

// submitted stores so many jobs of a cluster, and returns when the server sees them.
func submitted(t *testing.T, s *apiservertest.Site, cluster string, count int) {
	t.Helper()
	c := s.Cache.View().Cluster(cluster)
	for i := range count {
		job := api.Job{ID: fmt.Sprintf("waiting%04d", i), Cluster: c.Name(), ClusterUID: c.UID(), Phase: api.JobPending}
		revision, err := s.Repo.CreateJob(t.Context(), job)
		if err == nil && i == count-1 {
			_, err = s.Cache.WaitRevision(t.Context(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// datasetText is the request for a dataset of one file.
func datasetText(name string) string {
	return fmt.Sprintf(`{"name":%q,"files":[{"urls":["https://data.example/run1.root"],"adler32":"0a1b2c3d"}]}`, name)
}
