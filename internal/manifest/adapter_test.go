package manifest_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/manifest"
)

// adapters reads a file, and returns the interfaces and networks of its only group, with the adapters that these are narrowed to.
func adapters(t *testing.T, file string) (string, error) {
	t.Helper()
	req, src, err := manifest.DecodeCluster([]byte("name: c\n"+file), manifest.YAML)
	if err != nil {
		return "", err
	}
	c, err := manifest.Normalize(req, src)
	g := c.Spec.Groups[0]
	parts := []string{g.OwnNetwork().InterfaceText()}
	for _, n := range g.Networks {
		parts = append(parts, n.String())
	}
	return strings.Join(parts, " "), err
}

func TestAPortMayBeNarrowedToSomeAdapters(t *testing.T) {
	for file, want := range map[string]string{
		"interface: vf": "vf",
		"interface: vf\nadapter: {device: '0000:3b:00.0'}":                                                          "vf,pf=0000:3b:00.0",
		"interface: pf\nadapter: {numa_node: 0, rail: 255}":                                                         "pf,numa=0,rail=255",
		"stack: vm\ninterface: macvtap\nadapter: {rail: 0}":                                                         "macvtap,rail=0",
		"interface: vf\nadapter: {}":                                                                                "vf",
		"networks: [{name: project/ib, interface: vf, adapter: {device: 0002c90000200011}}]":                        " project/ib:vf,pf=0002c90000200011",
		"interface: vf\nadapter: {rail: 1}\ntechnology: infiniband\ncell: ib0":                                      " infiniband:vf,rail=1",
		"technology: infiniband\ncell: ib0\nnetworks: [{name: infiniband, interface: pf, adapter: {numa_node: 1}}]": " infiniband:pf,numa=1",
		"groups: [{interface: vf, adapter: {rail: 1}}]":                                                             "vf,rail=1",
	} {
		if got, err := adapters(t, file); err != nil || got != want {
			t.Errorf("%s\ngot %q, %v; want %q", file, got, err, want)
		}
	}
}

func TestAChoiceOfAdaptersThatCanNotBeIsRefusedWithTheReason(t *testing.T) {
	const device, interfaces = "interface: vf\nadapter: {device: ", "a choice of the adapter is for ports on adapters; write interface vf, pf or macvtap, or omit it"
	for file, want := range map[string]string{
		"adapter: {rail: 1}":                                                   "line 2: adapter: " + interfaces,
		"interface: veth\nadapter: {rail: 1}":                                  "line 3: adapter: " + interfaces,
		"networks: [{name: a, adapter: {numa_node: 0}}]":                       "networks[0].adapter: " + interfaces,
		"interface: vff\nadapter: {rail: 1}":                                   `interface: "vff" is no kind of port`,
		"interface: vf\nadapter: {rail: -1}":                                   "adapter.rail: -1 is no rail; write a number from 0 to 255",
		"interface: vf\nadapter: {rail: 256}":                                  "adapter.rail: 256 is no rail",
		"interface: vf\nadapter: {numa_node: -1}":                              "adapter.numa_node: -1 is no NUMA node; write a number from 0 to 1023",
		"interface: vf\nadapter: {numa: 1}":                                    "adapter.numa: is not a field",
		device + "'3b:00.0'}":                                                  `adapter.device: "3b:00.0" has no PCI domain; write it as 'nearmetal node show' does, such as 0000:3b:00.0`,
		device + "'0000:3B:00.0'}":                                             `adapter.device: "0000:3B:00.0" is not in lower case; write 0000:3b:00.0`,
		device + "'a b'}":                                                      `adapter.device: "a b" is neither the ID of a device, such as 0000:3b:00.0, nor the GUID of its port`,
		device + "''}":                                                         `adapter.device: "" is neither the ID of a device`,
		"interface: vf\nadapter: {rail: 1}\ngroups: [{interface: vf}]":         "adapter: conflicts with groups",
		"devices: [{class: gpu, way: whole, remote: true, rail: 300}]":         "devices: is not a field",
		"groups: [{devices: [{class: gpu, way: x, remote: true, rail: 300}]}]": "groups[0].devices[0].rail: 300 is no rail",
	} {
		if _, err := adapters(t, file); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "adapter: a choice") != strings.Contains(want, "adapter: a choice") {
			t.Errorf("%s\ngot %v; want %q", file, err, want)
		}
	}
}
