package cli_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestASecurityGroupIsShownWithItsRulesAndPorts(t *testing.T) {
	f := newFake(t)
	web := api.SecurityGroupStatus{
		Name: "web", UID: "gggggggggggg", Project: "default", Rules: []string{"in tcp 80 from 0.0.0.0/0", "in any from group web"}, NamedBy: []string{"db"},
		Clusters: []string{"c1"}, Ports: []api.SecurityGroupPort{{Network: "project/lab", NetworkPort: api.NetworkPort{
			Cluster: "c1", Member: "c1-0", Node: "n1", Address: netip.MustParseAddr("10.64.128.2"), SecurityGroups: []string{"web"},
		}}},
	}
	db := api.SecurityGroupStatus{Name: "db", Project: "lab", Rules: []string{}, NamedBy: []string{}, Clusters: []string{}, Ports: []api.SecurityGroupPort{}}
	f.fixed("GET /v1/security-groups", api.List[api.SecurityGroupStatus]{Items: []api.SecurityGroupStatus{web, db}})
	f.fixed("GET /v1/security-groups/web", web)
	f.fixed("GET /v1/whoami", api.Identity{User: "ada", Role: api.RoleAdmin, Project: "default"})
	has(t, f.shell().run(t, "security-group", "list"), 0, "web   default  2      1      c1        db\n", "db    lab      0      0      -         -\n")
	has(t, f.shell().run(t, "security-group", "show", "web"), 0, "Rules:     2\n  in tcp 80 from 0.0.0.0/0\n  in any from group web\n",
		"project/lab  c1       c1-0    n1    10.64.128.2  in use\n", "Named by:  db\n")
	has(t, f.shell().run(t, "__complete", "security-group", "show", ""), 0, "web\nlab.db\n:4\n")
	f.fixed("GET /v1/networks/{name}", api.NetworkStatus{Network: api.Network{Name: "project/lab"}, Ports: []api.NetworkPort{web.Ports[0].NetworkPort}})
	has(t, f.shell().run(t, "network", "show", "project/lab"), 0, "SECURITY GROUPS", "web")
}

func TestRulesOfASecurityGroupComeFromFlagsOrAFile(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/security-groups", api.SecurityGroupStatus{Name: "web"})
	f.fixed("POST /v1/security-groups/{name}/rules", api.SecurityGroupStatus{Name: "web"})
	file := filepath.Join(t.TempDir(), "web.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("name: web\nrules:\n  - in tcp 80 from 0.0.0.0/0\n")
	for _, args := range [][]string{
		{"create", "web", "--rule", "in tcp 80 from 0.0.0.0/0"},
		{"create", "-f", file},
		{"set", "web", "--add", "in any from group web", "--remove", "in tcp 80 from 0.0.0.0/0"},
		{"set", "web", "--rule", ""},
		{"set", "-f", file},
	} {
		has(t, f.shell().run(t, append([]string{"security-group"}, args...)...), 0, "web")
	}
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"name the security group", []string{"create"}},
		{`"Web"`, []string{"create", "Web"}},
		{"can't be given together with a file", []string{"create", "web", "-f", file}},
		{"can't be given together with a file", []string{"set", "web", "-f", file}},
		{"give the rules", []string{"set", "web"}},
		{"conflicts with add and remove", []string{"set", "web", "--rule", "in any from group a", "--add", "in any from group b"}},
		{"name the security groups to delete", []string{"delete"}},
	} {
		has(t, f.shell().run(t, append([]string{"security-group"}, tt.args...)...), cli.ExitUsage, tt.want)
	}
	write("name: web\nrule: in tcp 80 from 0.0.0.0/0\n")
	has(t, f.shell().run(t, "security-group", "create", "-f", file), cli.ExitUsage, file, "line 2", `did you mean "rules"?`)
}

func TestSecurityGroupsOfPortsAreGivenByNetwork(t *testing.T) {
	f := newFake(t)
	for want, args := range map[string][]string{
		`--security-group "web" is not NETWORK=GROUP`:             {"--network", "storage", "--security-group", "web"},
		"its network is not given: --network fast":                {"--network", "storage", "--security-group", "fast=web"},
		`--network: "web" is also networks[0].security_groups[0]`: {"--network", "storage", "--security-group", "storage=web", "--security-group", "storage=web"},
	} {
		has(t, f.shell().run(t, append([]string{"cluster", "create", "c1"}, args...)...), cli.ExitUsage, want)
	}
}
