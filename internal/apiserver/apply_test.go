package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// twoGroups is a file of a cluster with two groups.
func twoGroups(change func(*api.ClusterRequest)) api.ClusterRequest {
	req := api.ClusterRequest{
		Name: "c1", Labels: map[string]string{"team": "fluids", "run": "1"}, TimeLimit: api.Duration(2 * time.Hour),
		Groups: []api.Group{{Name: "head"}, {Name: "compute", Size: 4, Shape: api.Shape{Cores: 1}, Checks: []api.Check{{Name: "disk", Command: []string{"true"}}}}},
	}
	if change != nil {
		change(&req)
	}
	return req
}

// steps writes a plan in few words.
func steps(r api.ApplyResult) string {
	var lines []string
	for _, p := range r.Steps {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s>%s: %s", p.Action, p.Path, p.From, p.To, p.Message)))
	}
	return strings.Join(lines, "\n")
}

func TestApplyMakesAClusterWhatTheFileSays(t *testing.T) {
	tests := []struct {
		name   string
		change func(*api.ClusterRequest)
		want   string
	}{
		{"nothing", nil, "keep  >: the cluster already matches the file"},
		{
			"fewer and more members",
			func(r *api.ClusterRequest) { r.Groups[0].Size, r.Groups[1].Size = 2, 2 },
			"change groups[head].size 1>2: 1 member is added: head-1\nchange groups[compute].size 4>2: 2 members are released: compute-2, compute-3",
		},
		{
			"labels",
			func(r *api.ClusterRequest) { r.Labels = map[string]string{"team": "solids", "new": "x"} },
			"add labels.new >x:\nremove labels.run 1>:\nchange labels.team fluids>solids:",
		},
		{
			"spares, checks, limit, queue, priority",
			func(r *api.ClusterRequest) {
				r.Groups[1].Spares, r.Groups[1].Checks, r.TimeLimit, r.Queue, r.Priority = 1, nil, api.Duration(4*time.Hour), true, 3
			},
			"change time_limit 2h>4h: the cluster ends at 2026-01-31T12:00:00Z\nchange priority 0>3: the position in the queue changes\n" +
				"change queue false>true: members without room wait from now on\n" +
				"change groups[compute].spares 0>1: 1 more spare is held\nchange groups[compute].checks disk>none: members are checked again, nothing is restarted",
		},
		{
			"no limit any more",
			func(r *api.ClusterRequest) { r.TimeLimit = 0 },
			"change time_limit 2h>none: the cluster exists until it is deleted",
		},
		{
			"a group that is new, a group that goes",
			func(r *api.ClusterRequest) { r.Groups[1] = api.Group{Name: "extra", Size: 2} },
			"add groups[extra] >2 members: 2 members are added, with 1 core and 512MiB each: extra-0, extra-1\n" +
				"remove groups[compute] 4 members>: 4 members are released: compute-0, compute-1, compute-2, compute-3",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, c, _ := ready(t, twoGroups(nil))
			before, err := s.Repo.Intent(t.Context(), "c1")
			if err != nil {
				t.Fatal(err)
			}
			dry, err := c.ApplyCluster(t.Context(), "c1", twoGroups(tt.change), true)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, steps(dry)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			after, err := s.Repo.Intent(t.Context(), "c1")
			if diff := cmp.Diff(before, after); err != nil || dry.Applied || diff != "" || dry.Cluster == nil {
				t.Errorf("a dry run changed something: applied %v, %v\n%s", dry.Applied, err, diff)
			}
			if diff := cmp.Diff(before, s.Cache.Cluster("c1").Intent); diff != "" {
				t.Errorf("a dry run changed the shared view:\n%s", diff)
			}
			done, err := c.ApplyCluster(t.Context(), "c1", twoGroups(tt.change), false)
			if err != nil || steps(done) != tt.want || done.Applied != (tt.change != nil) {
				t.Errorf("apply: %v, applied %v\n%s", err, done.Applied, steps(done))
			}
			again, err := c.ApplyCluster(t.Context(), "c1", twoGroups(tt.change), false)
			if err != nil || again.Applied || steps(again) != tests[0].want {
				t.Errorf("again: %v, applied %v, %s; want nothing to do", err, again.Applied, steps(again))
			}
		})
	}
}

func TestApplyCreatesWhatIsNotThere(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	c := s.Client()
	const want = "create groups[head] >1 member: 1 member is created, with 1 core and 512MiB each: head-0\n" +
		"create groups[compute] >4 members: 4 members are created, with 1 core and 512MiB each: compute-0, compute-1, compute-2, compute-3"
	dry, err := c.ApplyCluster(t.Context(), "c1", twoGroups(nil), true)
	if err != nil || dry.Applied || dry.Cluster != nil || steps(dry) != want {
		t.Errorf("dry run: %v, %+v", err, dry)
	}
	if _, err := c.Cluster(t.Context(), "c1"); !client.HasCode(err, "cluster_not_found") {
		t.Errorf("after a dry run: %v", err)
	}
	done, err := c.ApplyCluster(t.Context(), "c1", twoGroups(nil), false)
	if err != nil || !done.Applied || done.Cluster == nil || done.Cluster.Name != "c1" || steps(done) != want {
		t.Errorf("apply: %v, %+v", err, done)
	}
}

func TestApplyIsRefusedWithoutChange(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(s *apiservertest.Site)
		change  func(*api.ClusterRequest)
		code    string
		texts   []string
	}{
		{"another cluster's file", nil, func(r *api.ClusterRequest) { r.Name = "c2" }, "other_cluster", []string{`"c2"`, `"c1"`}},
		{"another project's file", nil, func(r *api.ClusterRequest) { r.Project = "p" }, "other_cluster", []string{`"p.c1"`, `"c1"`}},
		{"what is fixed, each", nil, func(r *api.ClusterRequest) {
			r.Egress = true
			r.Groups[0].Cores, r.Groups[0].Memory, r.Groups[0].ShareMemory = 2, 1<<30, new(bool)
			r.Groups[1].Stack, r.Groups[1].Environment, r.Groups[1].NodeSelector = api.StackVM, "other", map[string]string{"rack": "r1"}
		}, "unchangeable", []string{
			"egress: is false and can't become true", "groups[head].cores: is 1 and can't become 2", "groups[head].memory: is 512MiB and can't become 1GiB",
			"groups[head].share_memory: is true and can't become false",
			"groups[compute].stack: is container", "groups[compute].environment: is local", "groups[compute].node_selector: is none and can't become rack=r1",
		}},
		{"another network of a group, and one that the cluster lacks", nil, func(r *api.ClusterRequest) {
			r.Groups[1].Networks = api.OnNetworks("storage", "fast")
			r.Groups = append(r.Groups, api.Group{Name: "x", Networks: api.OnNetworks("fast")})
		}, "unchangeable", []string{
			"groups[compute].networks: is none and can't become fast,storage", `groups[x].networks: names "fast", and a cluster can't get another network`,
		}},
		{"a fixed address for a group that has none", nil, func(r *api.ClusterRequest) {
			r.Groups[0].Networks = []api.GroupNetwork{{Name: "project/lab", Address: "10.64.128.9"}}
		}, "unchangeable", []string{"groups[head].networks: is none and can't become project/lab=10.64.128.9"}},
		{"the group of rank 0", nil, func(r *api.ClusterRequest) { r.Groups = r.Groups[1:] }, "unchangeable", []string{"groups[head]: holds rank 0 (head-0)"}},
		{"a shorter limit", nil, func(r *api.ClusterRequest) { r.TimeLimit = api.Duration(time.Hour) }, "cant_extend", []string{"can only be made longer"}},
		{"no room", func(s *apiservertest.Site) {
			s.Explainer.SetNoRoom(&apiservertest.NoRoom{Reason: "2 cores are missing"})
		}, func(r *api.ClusterRequest) { r.Groups[1].Size = 6 }, "no_room", []string{"2 cores"}},
		{"over quota", func(s *apiservertest.Site) { quota(s, api.Quota{Cores: 5}) }, func(r *api.ClusterRequest) { r.Groups[1].Spares = 1 }, "over_quota", []string{"quota is 5"}},
		{"unknown environment of a new group", nil, func(r *api.ClusterRequest) { r.Groups = append(r.Groups, api.Group{Name: "x", Environment: "nix"}) }, "unknown_environment", []string{"nix"}},
		{"paused", func(s *apiservertest.Site) { s.SetPhase("c1", api.ClusterPaused, "") }, func(r *api.ClusterRequest) { r.Groups[1].Size = 3 }, "wrong_phase", []string{"resume it"}},
		{"invalid", nil, func(r *api.ClusterRequest) { r.Groups[1].Size = -3 }, "invalid_cluster", []string{"groups[1].size: -3"}},
		{"deleting", func(s *apiservertest.Site) {
			_, revision, err := s.Repo.RequestDelete(contextOf(s), "c1", t0)
			if err == nil {
				_, err = s.Cache.WaitRevision(contextOf(s), revision)
			}
			if err != nil {
				t.Error(err)
			}
		}, nil, "cluster_exists", []string{"still being deleted"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, c, _ := ready(t, twoGroups(nil))
			if tt.prepare != nil {
				tt.prepare(s)
			}
			before, err := s.Repo.Intent(t.Context(), "c1")
			if err != nil {
				t.Fatal(err)
			}
			for _, dryRun := range []bool{true, false} {
				_, err := c.ApplyCluster(t.Context(), "c1", twoGroups(tt.change), dryRun)
				if !client.HasCode(err, tt.code) {
					t.Fatalf("dry run %v: %v, want %s", dryRun, err, tt.code)
				}
				for _, text := range tt.texts {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("dry run %v: %q lacks %q", dryRun, err, text)
					}
				}
			}
			after, err := s.Repo.Intent(t.Context(), "c1")
			if diff := cmp.Diff(before, after); err != nil || diff != "" {
				t.Errorf("the intent changed: %v\n%s", err, diff)
			}
		})
	}
}

func TestANewGroupMayShareNetworksOfItsCluster(t *testing.T) {
	networks := func(names ...string) func(*api.ClusterRequest) {
		return func(r *api.ClusterRequest) { r.Groups[1].Networks = api.OnNetworks(names...) }
	}
	_, c, _ := ready(t, twoGroups(networks("storage", "fast")))
	want := twoGroups(networks("fast", "storage")) // the order says nothing any more
	want.Groups = append(want.Groups, api.Group{Name: "x", Size: 1, Networks: api.OnNetworks("fast")})
	done, err := c.ApplyCluster(t.Context(), "c1", want, false)
	if err != nil || steps(done) != "add groups[x] >1 member: 1 member is added, with 1 core and 512MiB each: x-0" {
		t.Errorf("apply: %v\n%s", err, steps(done))
	}
}

func TestApplyTakesYAMLAndFullNames(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.Project("fluids", api.Quota{})
	yaml := map[string]string{"Content-Type": "application/yaml"}
	resp := send(t, s, request{method: "PUT", path: "/v1/clusters/fluids.c1", header: yaml, body: "name: c1\nsize: 2\n"})
	if resp.StatusCode != http.StatusOK || s.Cache.Cluster("fluids.c1") == nil {
		t.Errorf("apply of a full name: %s", resp.Status)
	}
	p := problemOf(t, send(t, s, request{method: "PUT", path: "/v1/clusters/fluids.c1?dry_run=x", header: yaml, body: "name: c1\n"}))
	if p.Code != "invalid_parameter" || !strings.Contains(p.Detail, "dry_run") {
		t.Errorf("a dry run of x: %+v", p)
	}
	p = problemOf(t, send(t, s, request{method: "PUT", path: "/v1/clusters/nix.c1", header: yaml, body: "name: c1\n"}))
	if p.Code != "project_not_found" {
		t.Errorf("a project that is not there: %+v", p)
	}
}
