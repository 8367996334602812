package boot

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const (
	// gpuHost is a host whose kernel leaves its GPU alone.
	gpuHost = `name: gpu-host
base: {environment: debian-vm}
kernel: {arguments: intel_iommu=on iommu=pt modprobe.blacklist=bochs}
stacks: [metal]
`
	// marker is an environment whose users can become root and reach a GPU's memory, as drivers do.
	marker = `name: marker
base: {environment: debian-mpi}
packages: [busybox]
commands: ["install -m 4755 /bin/dash /usr/local/bin/as-root"]
stacks: [container, vm]
`
	// mark is what a member leaves in its GPU's memory, at an address beyond its first eight megabytes.
	mark = "0x4C4546542D484552"
	none = "0x0000000000000000"
)

// A machine that was off boots as a host with a GPU. A virtual machine in it gets the GPU as a PCI device, and leaves a mark in its memory. Nobody else
// gets the GPU meanwhile. The next virtual machine does not find the mark.
func TestAVirtualMachineDoesNotFindWhatTheLastOneLeftInItsGPU(t *testing.T) {
	s := newHostWithGPU(t)
	if found := s.markOfNext(); found != none {
		t.Errorf("the next machine finds %s in its GPU's memory, want %s", found, none)
	}
}

// The same where the GPU's reset is trusted, which does not clear the memory of the emulated one: the mark is found, so the test above shows something.
func TestAVirtualMachineFindsWhatTheLastOneLeftInAGPUThatNobodyClears(t *testing.T) {
	s := newHostWithGPU(t, "--passthrough-clearing", "reset")
	if found := s.markOfNext(); found != mark {
		t.Errorf("the next machine finds %s in its GPU's memory, want %s", found, mark)
	}
}

// newHostWithGPU boots a host whose GPU is offered to virtual machines.
func newHostWithGPU(t *testing.T, options ...string) *site {
	t.Helper()
	s := newSite(t, []vdc.MachineConfig{{Name: "h1", Firmware: api.FirmwareBIOS, MemoryMiB: hostMiB, CPUs: 1, GPU: true}},
		"--boot-deadline", hostDeadline.String(), "--start-deadline", nestedDeadline.String())
	s.build("debian-vm")
	s.buildRecipe(gpuHost)
	s.buildRecipe(marker)
	s.enroll("h1", api.PowerRedfish, append([]string{"--passthrough-gpus", "all"}, options...)...)
	s.run("node", "power", "on", "h1", "--env", "gpu-host")
	wantWholeBoot(t, s.waitFor("h1", api.MachineReady, hostDeadline))
	s.until(2*time.Minute, "the GPU of h1", func() bool { g := s.gpu(); return g != nil && g.Passthrough != nil && g.Passthrough.Offered })
	t.Logf("the host reports %s", s.run("node", "show", "h1"))
	return s
}

// gpu is the host's GPU as its agent reports it; nil: none.
func (s *site) gpu() *api.NodeGPU {
	s.t.Helper()
	agent := s.node("h1").Agent
	if agent == nil || len(agent.GPUs) != 1 {
		return nil
	}
	return &agent.GPUs[0]
}

// markOfNext has a machine leave a mark in its GPU's memory, and returns what the next one finds there.
func (s *site) markOfNext() string {
	s.t.Helper()
	s.withGPU("a")
	if driver := s.driverOfGPU(); driver != "vfio-pci" {
		s.t.Errorf("while a machine has it, the GPU is with driver %q", driver)
	}
	s.refused("its only GPU of that kind is taken", "cluster", "create", "b", "--stack", "vm", "--gpu", "1", "--env", "marker")
	s.t.Logf("the first machine sees %s", s.in("a", "a-0", "cat /sys/bus/pci/devices/*/class"))
	s.memory("a", mark)
	if got := s.memory("a", ""); got != mark {
		s.t.Fatalf("the machine that wrote the mark reads %s", got)
	}
	s.run("cluster", "delete", "a", "--yes")
	if driver := s.driverOfGPU(); driver != "" {
		s.t.Errorf("after its machine, the GPU is with driver %q, want none, as before", driver)
	}
	s.withGPU("b")
	found := s.memory("b", "")
	s.run("cluster", "delete", "b", "--yes")
	if g := s.gpu(); g == nil || len(g.Problems) > 0 || !g.Passthrough.Offered {
		s.t.Errorf("in the end, the GPU is %+v", g)
	}
	return found
}

func (s *site) withGPU(name string) {
	s.t.Helper()
	begun := time.Now()
	s.run("cluster", "create", name, "--stack", "vm", "--gpu", "1", "--memory", "512MiB", "--env", "marker", "--timeout", nestedDeadline.String())
	s.t.Logf("measured: a virtual machine with a GPU, on an emulated host, was ready after %.0f s", time.Since(begun).Seconds())
}

// memory reads a word of the GPU's memory in a member, or writes it.
func (s *site) memory(cluster, value string) string {
	s.t.Helper()
	const find = `d=$(dirname $(grep -l ^0x0380 /sys/bus/pci/devices/*/class)); echo 1 > $d/enable; read first last flags < $d/resource; `
	// busybox gives up what it has from a set-user-ID program, unless its real user is root, too.
	return strings.TrimSpace(s.in(cluster, cluster+"-0", "as-root -p -c '"+find+"setpriv --reuid 0 --clear-groups busybox devmem $(($first + 0x900000)) 64 "+value+"'"))
}

// driverOfGPU is the driver that the host's GPU is with, "" for none.
func (s *site) driverOfGPU() (driver string) {
	s.t.Helper()
	s.onHost("h1", func(h *host) {
		driver = h.ask("d=$(dirname $(grep -l ^0x0380 /sys/bus/pci/devices/*/class)); basename $(readlink $d/driver) 2>/dev/null")
	})
	if strings.Contains(driver, "status") {
		return ""
	}
	return driver
}
