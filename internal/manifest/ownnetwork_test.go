package manifest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// ownNetwork reads a file, and returns what carries the own network with the interfaces of its groups: vlan c:vf.
func ownNetwork(t *testing.T, file string) (text string, c manifest.Cluster, err error) {
	t.Helper()
	req, src, err := manifest.DecodeCluster([]byte("name: c\n"+file), manifest.YAML)
	if err != nil {
		t.Fatal(err)
	}
	c, err = manifest.Normalize(req, src)
	text = string(c.Spec.Technology)
	for _, g := range c.Spec.Groups {
		text += " " + g.Name + ":" + g.OwnNetwork().InterfaceText()
		for _, n := range g.Networks {
			text += "," + n.String()
		}
	}
	return text, c, err
}

func TestAnOwnNetworkIsCarriedByWhatItsPortsNeed(t *testing.T) {
	const ib, eth = "interconnect: {technology: infiniband}", "interconnect: {technology: ethernet}"
	for file, want := range map[string]string{
		"":                               "  c:",
		"interface: veth":                "  c:",
		"{stack: vm, interface: virtio}": "  c:",
		"technology: vxlan":              "vxlan c:",
		"technology: vlan":               "vlan c:",
		"interface: vf":                  "vlan c:vf",
		"interface: vf\n" + eth:          "vlan c:vf",
		"interface: pf":                  "vlan c:pf",
		"stack: vm\ninterface: macvtap":  "vlan c:macvtap",
		"{stack: vm, interface: vf, standby: true}":                                                  "vlan c:vf,standby",
		"interface: vf\n" + ib:                                                                       "infiniband c:,infiniband:vf",
		"interface: pf\nnetworks: [a]\n" + ib:                                                        "infiniband c:,infiniband:pf,a",
		"interface: vf\ntechnology: vlan\n" + ib:                                                     "vlan c:vf",
		"interface: vf\ntechnology: infiniband\ncell: ib0":                                           "infiniband c:,infiniband:vf",
		"technology: infiniband\nnetworks: [{name: infiniband, interface: vf}]":                      "infiniband c:,infiniband:vf",
		"groups: [{name: a, interface: vf}, {name: b}]":                                              "vlan a:vf b:",
		"groups: [{name: a, interface: vf, " + ib + "}, {name: b, " + ib + "}]":                      "infiniband a:,infiniband:vf b:",
		"groups: [{name: a, interface: vf, " + ib + "}, {name: b, interface: vf}]\ntechnology: vlan": "vlan a:vf b:vf",
		"networks: [infiniband]":                                                                     "  c:,infiniband",
	} {
		if strings.HasPrefix(file, "{") {
			file = strings.ReplaceAll(strings.Trim(file, "{}"), ", ", "\n")
		}
		got, c, err := ownNetwork(t, file)
		if err != nil || got != strings.TrimPrefix(want, " ") {
			t.Errorf("%s\ngot %q, %v; want %q", file, got, err, want)
			continue
		}
		// The normal form is one: written as a file, it stays as it is.
		again, err := manifest.Normalize(api.ClusterRequest{Name: c.Name, Technology: c.Spec.Technology, Cell: c.Spec.Cell, Groups: c.Spec.Groups}, nil)
		if err != nil || fmt.Sprint(again.Spec) != fmt.Sprint(c.Spec) {
			t.Errorf("%s\nbecomes %v, which becomes %v, %v", file, c.Spec, again.Spec, err)
		}
	}
}

func TestAnOwnNetworkThatCanNotBeIsRefusedWithTheReason(t *testing.T) {
	const ib = "interconnect: {technology: infiniband}"
	for file, want := range map[string]string{
		"technology: token-ring":                                  `technology: "token-ring" is no technology of networks; use vxlan, vlan or infiniband`,
		"technology: vlna":                                        `did you mean "vlan"?`,
		"technology: ''":                                          `technology: "" is no technology of networks`,
		"interface: ''":                                           "interface: is empty; use veth, virtio, macvtap, vf or pf",
		"interface: vff":                                          `interface: "vff" is no kind of port; did you mean "vf"?`,
		"interface: virtio":                                       `"virtio" is for virtual machines`,
		"interface: macvtap":                                      `"macvtap" is for virtual machines`,
		"stack: vm\ninterface: veth":                              `"veth" is for containers`,
		"stack: metal\ninterface: vf":                             `is not possible on stack "metal"`,
		"interface: vf\ntechnology: vxlan":                        `interface: "vf" is not possible on an own network of technology vxlan`,
		"interface: vf\nspares: 1":                                "which a spare can't hold for its member",
		"interface: vf\nspares: 1\n" + ib:                         "which a spare can't hold for its member",
		"interface: vf\negress: true":                             "egress: is not possible with interface vf: its packets pass no node",
		"interface: vf\nstandby: true":                            "standby: a standby is for virtual machines",
		"stack: vm\ninterface: pf\nstandby: true":                 "standby: a standby is for interface vf, which is unplugged",
		"stack: vm\nstandby: true":                                "standby: a standby is for interface vf",
		"stack: vm\ninterface: vf\nstandby: true\n" + ib:          "has a standby, which is an Ethernet interface, and InfiniBand carries no Ethernet",
		"stack: vm\nnetworks: [{name: project/a, standby: true}]": "networks[0].standby: a standby is for interface vf",
		"stack: vm\ntechnology: infiniband\nnetworks: [{name: infiniband, interface: vf, standby: true}]": "InfiniBand carries no Ethernet",
		"standby: true\ngroups: [{name: a}]":               "standby: conflicts with groups",
		"cell: ib0":                                        "cell: is for clusters with a partition only",
		"interface: vf\ncell: ib0":                         "cell: is for clusters with a partition only",
		"technology: infiniband\ncell: IB0\ninterface: vf": `cell: "IB0" is not a DNS label`,
		"technology: infiniband":                           "technology: gives the cluster a partition, and no group has ports there; write interface vf, or pf for whole ports",
		"technology: infiniband\ninterface: veth":          "and no group has ports there",
		"stack: vm\ninterface: macvtap\n" + ib:             `interface: "macvtap" is an Ethernet interface, and InfiniBand carries no Ethernet`,
		"technology: infiniband\nnetworks: [infiniband]":   `networks[0].interface: is not vf, or pf for a whole port`,
		"technology: infiniband\ninterface: vf\nnetworks: [{name: infiniband, interface: vf}]":          `interface: conflicts with the group's network "infiniband"`,
		"technology: infiniband\nnetworks: [{name: infiniband, interface: vf, security_groups: [web]}]": "has security groups, which nodes can't enforce on a port of kind vf",
		"technology: infiniband\nnetworks: [{name: infiniband, interface: vf, dscp: '10'}]":             "has a DSCP, which nodes can't enforce on a port of kind vf",
		"technology: infiniband\nnetworks: [{name: infiniband, interface: vf, limited: true}]":          "limited: is for networks of the project on InfiniBand only",
		"technology: infiniband\ninterface: vf\nnetworks: [a, b, c, d, e, f, g]":                        "at most 6 are possible beside the cluster's own and its partition",
		"networks: [{name: infiniband, interface: vf}]":                                                 `"vf" is not possible on "infiniband", a further private network of the cluster`,
		"technology: vlan\nnetworks: [{name: data, interface: vf}]":                                     `"vf" is not possible on "data", a further private network of the cluster`,
		"interface: vf\ngroups: [{name: a}]":                                                            "interface: conflicts with groups",
		"groups: [{name: a, interface: vf, " + ib + "}, {name: b, interface: vf}]":                      `technology: is missing: by their interconnects, group "a" needs an own network of technology infiniband, and group "b" one of technology vlan`,
	} {
		_, _, err := ownNetwork(t, file)
		invalid := new(manifest.Invalid)
		if !errors.As(err, &invalid) || len(invalid.Problems) != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %v; want one problem: %s", file, err, want)
		}
	}
}
