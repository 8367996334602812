package boot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// placed is how long a cluster of containers on two emulated hosts may take.
const placed = 10 * time.Minute

// Two hosts that were off boot over the network, and carry networks in the two ways that not every kernel can: on a VLAN of their trunk, and in tunnels
// within WireGuard. On a VLAN, members are cut off from each other with the cable of the trunk, so nothing else connects them. In the encrypted
// underlay, no tunnel is in clear on the wire.
func TestBootedHostsCarryNetworksOnVLANsAndInAnEncryptedUnderlay(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "h1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, CPUs: 1}, {Name: "h2", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, CPUs: 1},
	}, "--vlan-pool", "100-199", "--boot-deadline", hostDeadline.String())
	s.enroll("h1", api.PowerRedfish, "--trunk-mac", s.machine("h1").DataMAC)
	s.enroll("h2", api.PowerIPMI, "--trunk-mac", s.machine("h2").DataMAC)
	s.run("node", "power", "on", "h1", "h2", "--env", "debian-mpi")
	for _, name := range []string{"h1", "h2"} {
		wantWholeBoot(t, s.waitFor(name, api.MachineReady, hostDeadline))
		s.until(time.Minute, "the trunk of "+name+" to be usable", func() bool {
			agent := s.node(name).Agent
			return agent != nil && agent.Trunk.Usable()
		})
	}
	s.run("node", "drain", "n1")

	t.Log("a network on a VLAN of the trunks")
	s.run("network", "create", "wire", "--technology", "vlan", "--vlan", "120")
	s.placeOnBoth("v", "--network", "project/wire")
	s.wantTalk("v", true)
	must(t, s.dc.SetNIC("h2", vdc.Data, false))
	s.wantTalk("v", false)
	must(t, s.dc.SetNIC("h2", vdc.Data, true))
	s.wantTalk("v", true)
	s.run("cluster", "delete", "v", "--yes")
	s.run("network", "delete", "project/wire")

	t.Log("an encrypted underlay")
	s.stop()
	s.args = []string{"--encrypt-underlay", "--boot-deadline", hostDeadline.String()}
	s.start()
	for _, name := range []string{"h1", "h2"} {
		s.until(2*time.Minute, name+" to be ready again", func() bool { return s.node(name).Phase == api.NodeReady })
	}
	seen := s.tap("h1")
	s.run("network", "create", "net")
	s.placeOnBoth("e", "--network", "project/net")
	s.wantTalk("e", true)
	if check := s.run("network", "check", "project/net"); !strings.Contains(check, "hears h2") || strings.Contains(check, "failed") {
		t.Errorf("the network is checked as:\n%s", check)
	}
	if wireGuard, clear := seen(51890), seen(4789); wireGuard == 0 || clear > 0 {
		t.Errorf("%d frames to WireGuard's port and %d to VXLAN's passed on the wire, want some and none", wireGuard, clear)
	}
	s.run("cluster", "delete", "e", "--yes")
	s.run("node", "power", "off", "h1", "h2")
	for _, name := range []string{"h1", "h2"} {
		s.waitFor(name, api.MachineOff, 5*time.Minute)
	}
	s.wantUntouched()
}

// placeOnBoth makes a cluster with a container on each of the two booted hosts.
func (s *site) placeOnBoth(name string, more ...string) {
	s.t.Helper()
	s.run(append([]string{"cluster", "create", name, "--size", "2", "--cores", "1", "--memory", "256MiB", "--env", "debian-mpi", "--timeout", placed.String()}, more...)...)
	members := s.cluster(name).Status.Members
	if len(members) != 2 || members[0].Node == members[1].Node {
		s.t.Fatalf("the members of %s are on %+v, want one on each host", name, members)
	}
}

// wantTalk checks whether the first member of a cluster reaches the second one by its address on the network of the project.
func (s *site) wantTalk(cluster string, want bool) {
	s.t.Helper()
	address := ""
	for _, port := range s.cluster(cluster).Status.Members[1].Networks {
		address = port.Address
	}
	// Bash opens a connection to SSH; the other side speaks first. An adapter's link may come up a moment after its member.
	said, err := s.try("cluster", "ssh", cluster, "--", "timeout", "30", "bash", "-c", fmt.Sprintf("until head -c 4 </dev/tcp/%s/22; do sleep 1; done", address))
	if got := strings.Contains(said, "SSH-"); got != want {
		s.t.Errorf("member 0 of %s hears SSH at %s: %v, want %v (%q, %v)", cluster, address, got, want, said, err)
	}
}

// tap counts the UDP datagrams to a port that pass between a machine and the provisioning network, from now on.
func (s *site) tap(machine string) func(port uint16) int {
	s.t.Helper()
	ns, link, err := s.dc.Port(machine, vdc.Provisioning)
	must(s.t, err)
	w := &wire{s: s}
	must(s.t, ns.Do(func() error {
		w.keep(listen(s.t, link), func(frame []byte) bool { return port(frame, 51890) || port(frame, 4789) })
		return nil
	}))
	return func(number uint16) (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, frame := range w.frames {
			if port(frame, number) {
				n++
			}
		}
		return n
	}
}
