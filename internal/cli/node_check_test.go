package cli_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/hostcheck"
)

// host is a machine of a test.
type host struct {
	findings []hostcheck.Finding
	plan     hostcheck.Prepared
	wanted   hostcheck.Wanted
	applied  []hostcheck.Change
	err      error
}

func (h *host) Check(context.Context) ([]hostcheck.Finding, error) { return h.findings, nil }

func (h *host) Plan(_ context.Context, w hostcheck.Wanted) hostcheck.Prepared {
	h.wanted = w
	return h.plan
}

func (h *host) Apply(_ context.Context, changes []hostcheck.Change, show func(hostcheck.Change)) error {
	for _, c := range changes {
		show(c)
		h.applied = append(h.applied, c)
	}
	return h.err
}

func TestTheCheckOfAMachineFailsIfSomethingIsMissing(t *testing.T) {
	h := &host{findings: []hostcheck.Finding{
		{Area: hostcheck.Container, Name: "stack", Status: hostcheck.OK},
		{Area: hostcheck.VM, Name: "QEMU", Status: hostcheck.Warning, Detail: "old", Fix: "upgrade"},
	}}
	s := shell{commands: cli.Commands{Host: h}}
	has(t, s.run(t, "node", "check"), 0, "ok       container  stack  -", "FOR  WHAT  FIX\nvm   QEMU  upgrade\n")
	h.findings[1].Status = hostcheck.Missing
	has(t, s.run(t, "node", "check"), cli.ExitFailed, "missing")
	has(t, s.run(t, "node", "check", "-o", "json"), cli.ExitFailed, `"status": "missing",`, `"fix": "upgrade"`)
	has(t, s.run(t, "node", "check", "n1", "n2"), cli.ExitUsage, "one node, or nothing for this machine")
	f := newFake(t)
	f.fixed("GET /v1/nodes/n1", api.Node{Name: "n1", Agent: &api.AgentPart{}, Offer: api.Offer{Stacks: []api.StackCheck{
		{Stack: api.StackVM, Problems: []string{"QEMU is missing; run: apt-get install qemu-system-x86"}},
	}}})
	has(t, f.shell().run(t, "node", "check", "n1", "--recorded"), cli.ExitFailed, "missing  vm   stack  QEMU is missing", "vm   stack  apt-get install qemu-system-x86")
	f.fixed("GET /v1/nodes/n2", api.Node{Name: "n2"})
	has(t, f.shell().run(t, "node", "check", "n2", "--recorded"), cli.ExitConflict, "no agent of node \"n2\" has connected yet")
}

func TestTheCheckOfAnotherNodeIsMadeNowByItsAgent(t *testing.T) {
	f := newFake(t)
	f.fixed("GET /v1/nodes/n1/host-check", api.HostCheck{Findings: []api.HostFinding{
		{Area: "network", Name: "nft", Status: "ok"}, {Area: "vm", Name: "KVM", Status: "missing", Detail: "/dev/kvm is absent", Fix: "modprobe kvm_intel"},
	}})
	has(t, f.shell().run(t, "node", "check", "n1"), cli.ExitFailed, "missing  vm       KVM   /dev/kvm is absent", "vm   KVM   modprobe kvm_intel")
	has(t, f.shell().run(t, "node", "check", "--recorded"), cli.ExitUsage, "name the node")
}

func TestPreparationShowsWhatItDoesAndDoesNothingInADryRun(t *testing.T) {
	h := &host{plan: hostcheck.Prepared{
		Changes: []hostcheck.Change{{Command: []string{"modprobe", "tun"}, Why: "machines' networks"}}, Left: []string{"enable VT-x"},
	}}
	s := shell{commands: cli.Commands{Host: h}}
	const said = "modprobe tun  # machines' networks\nleft to do: enable VT-x\n"
	dry := s.run(t, "node", "prepare", "--dry-run", "--for", "vm,vm", "--huge-pages", "1GiB")
	has(t, dry, 0, said)
	if len(h.applied) > 0 || len(h.wanted.For) != 1 || h.wanted.HugePages != 1<<30 {
		t.Errorf("a dry run for %+v did %v", h.wanted, h.applied)
	}
	has(t, s.run(t, "node", "prepare"), 0, said)
	if len(h.applied) != 1 || len(h.wanted.For) != 2 {
		t.Errorf("for %+v it did %v", h.wanted, h.applied)
	}
	h.plan = hostcheck.Prepared{Changes: []hostcheck.Change{}, Left: []string{}}
	has(t, s.run(t, "node", "prepare"), 0, "nothing to change\n")
	has(t, s.run(t, "node", "prepare", "-o", "json"), 0, `"changes": []`)
	h.err = errors.New("modprobe tun: exit status 1")
	has(t, s.run(t, "node", "prepare"), cli.ExitFailed, "modprobe tun: exit status 1")
	has(t, s.run(t, "node", "prepare", "--for", "metal"), cli.ExitUsage, "use container, vm or builder")
	has(t, s.run(t, "node", "prepare", "--huge-pages", "some"), cli.ExitUsage, "--huge-pages")
}
