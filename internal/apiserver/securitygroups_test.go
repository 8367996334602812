package apiserver_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// guarded are networks of a group whose ports have security groups.
func guarded(network string, groups ...string) []api.GroupNetwork {
	return []api.GroupNetwork{{Name: network, SecurityGroups: groups}}
}

func TestASecurityGroupIsSharedByTheClustersOfItsProjectAndUnknownToOtherProjects(t *testing.T) {
	s := twoProjects(t)
	ann, eve, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	made, err := ann.CreateSecurityGroup(t.Context(), api.SecurityGroupRequest{Name: "web", Rules: []string{"in tcp 80-80  from 0.0.0.0/0", "in any from group web"}})
	if err != nil || made.Project != "default" || !slices.Equal(made.Rules, []string{"in tcp 80 from 0.0.0.0/0", "in any from group web"}) || len(made.NamedBy) != 0 {
		t.Fatalf("created %+v, %v", made, err)
	}
	for who, c := range map[string]*client.Client{"a viewer": vic, "a member of another project": eve} {
		if _, err := c.CreateSecurityGroup(t.Context(), api.SecurityGroupRequest{Name: "x", Project: "default"}); !client.HasCode(err, "forbidden") {
			t.Errorf("%s creates a security group of the default project: %v", who, err)
		}
	}
	if _, err := vic.ChangeSecurityGroupRules(t.Context(), "web", api.SecurityGroupRules{Rules: &[]string{}}); !client.HasCode(err, "forbidden") {
		t.Errorf("a viewer changes rules: %v", err)
	}
	for _, name := range []string{"default.web", made.UID} {
		if _, err := eve.SecurityGroup(t.Context(), name); !client.HasCode(err, "security_group_not_found") {
			t.Errorf("a member of another project sees %s: %v", name, err)
		}
		if _, err := eve.ChangeSecurityGroupRules(t.Context(), name, api.SecurityGroupRules{Rules: &[]string{}}); !client.HasCode(err, "security_group_not_found") {
			t.Errorf("a member of another project changes %s: %v", name, err)
		}
		if err := eve.DeleteSecurityGroup(t.Context(), name); !client.HasCode(err, "security_group_not_found") {
			t.Errorf("a member of another project deletes %s: %v", name, err)
		}
	}
	if _, err := eve.CreateCluster(t.Context(), api.ClusterRequest{Name: "c9", Networks: guarded("storage", "web")}); !client.HasCode(err, "unknown_security_group") {
		t.Errorf("a cluster of another project has the security group: %v", err)
	}
	if theirs, err := eve.CreateSecurityGroup(t.Context(), api.SecurityGroupRequest{Name: "web"}); err != nil || theirs.Project != "lab" || len(theirs.Rules) != 0 {
		t.Fatalf("two projects can't each have a security group web: %+v, %v", theirs, err)
	}
	if all, err := eve.SecurityGroups(t.Context()); err != nil || len(all) != 1 || all[0].Project != "lab" {
		t.Errorf("a member of project lab sees %+v, %v", all, err)
	}
}

func TestASecurityGroupIsShownWithThePortsThatHaveItAndKeptWhileInUse(t *testing.T) {
	s := twoProjects(t)
	ann := s.ClientAs("ann", "default", api.RoleMember)
	for _, req := range []api.SecurityGroupRequest{{Name: "ops"}, {Name: "web", Rules: []string{"in tcp 22 from group ops"}}} {
		if _, err := ann.CreateSecurityGroup(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"c1", "c2"} {
		if _, err := ann.CreateCluster(t.Context(), api.ClusterRequest{Name: name, Networks: guarded("storage", "web")}); err != nil {
			t.Fatal(err)
		}
		s.Place(name)
	}
	g, err := ann.SecurityGroup(t.Context(), "web")
	if err != nil || !slices.Equal(g.Clusters, []string{"c1", "c2"}) || len(g.Ports) != 2 || g.Ports[0].Network != "c1:storage" || g.Ports[1].Member != "c2-0" {
		t.Errorf("the security group of two clusters is %+v, %v", g, err)
	}
	if n, err := ann.Network(t.Context(), "c1:storage"); err != nil || len(n.Ports) != 1 || !slices.Equal(n.Ports[0].SecurityGroups, []string{"web"}) {
		t.Errorf("the network is %+v, %v; want a port of group web", n, err)
	}
	if ops, err := ann.SecurityGroup(t.Context(), "ops"); err != nil || !slices.Equal(ops.NamedBy, []string{"web"}) || len(ops.Ports) != 0 {
		t.Errorf("a security group that another names is %+v, %v", ops, err)
	}
	limited := s.ClientOf(s.TokenWith(api.TokenInfo{User: "ann", Role: api.RoleMember, Project: "default", Limits: api.Limits{Clusters: []string{"c1"}}}))
	if g, err := limited.SecurityGroup(t.Context(), "web"); err != nil || len(g.Ports) != 1 || !slices.Equal(g.Clusters, []string{"c1"}) {
		t.Errorf("a token for c1 alone sees %+v, %v", g, err)
	}
	if _, err := limited.ChangeSecurityGroupRules(t.Context(), "web", api.SecurityGroupRules{Rules: &[]string{}}); !client.HasCode(err, "forbidden") {
		t.Errorf("a token for c1 alone changes the rules of all: %v", err)
	}
	for name, want := range map[string]string{"web": "2 clusters (c1, c2)", "ops": "1 security group (web)"} {
		if err := ann.DeleteSecurityGroup(t.Context(), name); !client.HasCode(err, "security_group_in_use") || !strings.Contains(err.Error(), want) {
			t.Errorf("security group %s is deleted while in use: %v", name, err)
		}
	}
	g, err = ann.ChangeSecurityGroupRules(t.Context(), "web", api.SecurityGroupRules{Remove: []string{"in tcp 22-22 from group ops"}, Add: []string{"in udp from 10.0.0.0/8"}})
	if err != nil || !slices.Equal(g.Rules, []string{"in udp from 10.0.0.0/8"}) {
		t.Errorf("after a change the rules are %q, %v", g.Rules, err)
	}
	if err := ann.DeleteSecurityGroup(t.Context(), "ops"); err != nil {
		t.Errorf("a security group that nothing names any more is not deleted: %v", err)
	}
}

func TestRulesOfASecurityGroupAreRefusedWithTheReasonAndNothingChanges(t *testing.T) {
	s := twoProjects(t)
	c := s.Client()
	if _, err := c.CreateSecurityGroup(t.Context(), api.SecurityGroupRequest{Name: "web", Rules: []string{"in tcp 80 from 10.0.0.0/8"}}); err != nil {
		t.Fatal(err)
	}
	named := make([]string, 17)
	for i := range named {
		named[i] = fmt.Sprintf("in any from group g%d", i)
	}
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprintf("in tcp %d from 10.0.0.0/8", i)
	}
	for _, tt := range []struct {
		change     api.SecurityGroupRules
		code, want string
	}{
		{api.SecurityGroupRules{}, "invalid_request", "rules: is missing"},
		{api.SecurityGroupRules{Rules: &[]string{}, Add: []string{"in any from group web"}}, "invalid_request", "conflicts with add and remove"},
		{api.SecurityGroupRules{Add: []string{"into tcp 22 from 10.0.0.0/8"}}, "invalid_request", `direction "into" is neither in nor out`},
		{api.SecurityGroupRules{Add: []string{"in tcp 80 from 10.1.0.0/16"}}, "invalid_request", "rule 2 (in tcp 80 from 10.1.0.0/16) changes nothing, because rule 1"},
		{api.SecurityGroupRules{Add: []string{"in any from group b", "in any from group b"}}, "invalid_request", "is also add[0]"},
		{api.SecurityGroupRules{Remove: []string{"in tcp 81 from 10.0.0.0/8"}}, "invalid_request", `"in tcp 81 from 10.0.0.0/8" is not a rule of security group web`},
		{api.SecurityGroupRules{Rules: &named}, "invalid_request", "name 17 groups; the limit is 16"},
		{api.SecurityGroupRules{Rules: &many}, "invalid_request", "has 1001 rules; at most 1000 are possible"},
		{api.SecurityGroupRules{Add: many[1:]}, "invalid_request", "makes 1001 rules"},
		{api.SecurityGroupRules{Add: []string{"in any from group " + strings.Repeat("x", 200)}}, "invalid_request", "has 218 bytes; a rule has at most 128"},
		{api.SecurityGroupRules{Add: []string{"in any from group wob"}}, "unknown_security_group", `did you mean "web"?`},
	} {
		_, err := c.ChangeSecurityGroupRules(t.Context(), "web", tt.change)
		if !client.HasCode(err, tt.code) || !strings.Contains(fmt.Sprintf("%+v", err), tt.want) {
			t.Errorf("%+v: got %v, want %s with %q", tt.change.Add, err, tt.code, tt.want)
		}
	}
	if g, err := c.SecurityGroup(t.Context(), "web"); err != nil || !slices.Equal(g.Rules, []string{"in tcp 80 from 10.0.0.0/8"}) {
		t.Errorf("after refusals the rules are %q, %v", g.Rules, err)
	}
	for _, name := range []string{"", "A", "a.b", strings.Repeat("x", 33)} {
		if _, err := c.CreateSecurityGroup(t.Context(), api.SecurityGroupRequest{Name: name}); !client.HasCode(err, "invalid_request") {
			t.Errorf("a security group named %q: %v", name, err)
		}
	}
}

func TestAClusterIsRefusedWhoseSecurityGroupsAreNotThere(t *testing.T) {
	s := twoProjects(t)
	c := s.Client()
	eight := make([]string, 9)
	for i := range eight {
		eight[i] = fmt.Sprintf("g%d", i)
	}
	if _, err := c.CreateSecurityGroup(t.Context(), api.SecurityGroupRequest{Name: "web"}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		networks   []api.GroupNetwork
		code, want string
	}{
		{guarded("storage", "wob"), "unknown_security_group", `security group "wob" of group "c1" on network "storage" is not a security group of project default; its security groups: "web"; did you mean "web"?`},
		{guarded("storage", "web", "web"), "invalid_cluster", "name every security group once"},
		{guarded("storage", "lab.web"), "invalid_cluster", "networks[0].security_groups[0]"},
		{guarded("storage", eight...), "invalid_cluster", "has 9 security groups; a port has at most 8"},
	} {
		_, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Networks: tt.networks})
		if !client.HasCode(err, tt.code) || !strings.Contains(fmt.Sprintf("%+v", err), tt.want) {
			t.Errorf("%v: got %v, want %s with %q", tt.networks, err, tt.code, tt.want)
		}
	}
	if all, err := c.Clusters(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after refusals there are the clusters %+v, %v", all, err)
	}
	spec := api.ClusterRequest{Name: "c1", Groups: []api.Group{{Name: "a", Networks: guarded("storage", "web")}, {Name: "b", Networks: api.OnNetworks("storage")}}}
	if _, err := c.CreateCluster(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	s.Place("c1")
	spec.Groups[1].Networks = guarded("storage", "web")
	if _, err := c.ApplyCluster(t.Context(), "c1", spec, false); !client.HasCode(err, "unchangeable") || !strings.Contains(fmt.Sprintf("%+v", err), "is storage and can't become storage[web]") {
		t.Errorf("a group of a cluster gets a security group: %v", err)
	}
	spec.Groups[1] = api.Group{Name: "b", Networks: api.OnNetworks("storage")}
	spec.Groups = append(spec.Groups, api.Group{Name: "d", Networks: guarded("storage", "none")})
	if _, err := c.ApplyCluster(t.Context(), "c1", spec, false); !client.HasCode(err, "unknown_security_group") {
		t.Errorf("a new group of a cluster names a security group that is not there: %v", err)
	}
}
