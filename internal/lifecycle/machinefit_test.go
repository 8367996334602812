package lifecycle

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestANodeTakesMachinesOfAlikeNodesOnly(t *testing.T) {
	node := func(name, qemu, libvirt string, p *api.ProcessorKind) *api.NodeRecord {
		return &api.NodeRecord{Name: name, Stacks: []api.StackCheck{
			{Stack: api.StackContainer, OK: true},
			{Stack: api.StackVM, OK: true, Machines: &api.MachineMaker{QEMU: qemu, Libvirt: libvirt, Processor: p}},
		}}
	}
	intel, older, amd := &api.ProcessorKind{Vendor: "GenuineIntel", Family: "6", Model: "143"}, &api.ProcessorKind{Vendor: "GenuineIntel", Family: "6", Model: "85"},
		&api.ProcessorKind{Vendor: "AuthenticAMD", Family: "25", Model: "1"}
	for name, tc := range map[string]struct {
		to    *api.NodeRecord
		model string
		want  string
	}{
		"an equal node":     {to: node("n2", "7.2", "9.0", intel)},
		"another QEMU":      {to: node("n2", "8.2", "9.0", intel), want: "node n2 has QEMU 8.2, and node n1 has QEMU 7.2"},
		"another libvirt":   {to: node("n2", "7.2", "10.0", intel), want: "node n2 has libvirt 10.0, and node n1 has libvirt 9.0"},
		"another processor": {to: node("n2", "7.2", "9.0", older), want: "node n2 has a processor of GenuineIntel, family 6, model 85, and node n1"},
		"another processor, under a named CPU model":    {to: node("n2", "7.2", "9.0", older), model: "Westmere"},
		"another vendor, under a named CPU model":       {to: node("n2", "7.2", "9.0", amd), model: "Westmere", want: "of AuthenticAMD, and node n1 one of GenuineIntel"},
		"a node that emulates processors":               {to: node("n2", "7.2", "9.0", nil), want: "node n2 emulates processors, and node n1 has a processor"},
		"a node that reports nothing about machines":    {to: &api.NodeRecord{Name: "n2", Stacks: []api.StackCheck{{Stack: api.StackVM, OK: true}}}},
		"a node without the stack for virtual machines": {to: &api.NodeRecord{Name: "n2"}},
	} {
		got := CantTake(node("n1", "7.2", "9.0", intel), tc.to, tc.model)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
