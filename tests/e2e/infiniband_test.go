package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// Two networks on a simulated InfiniBand fabric are two partitions: a real OpenSM puts each key into the table of its member's port and no other,
// and takes it out again.
func TestNetworksOnInfiniBandArePartitionsOfTheirMembersPortsOnly(t *testing.T) {
	program(t, ordinary)
	for _, name := range []string{"ibsim", "opensm", "smpquery"} {
		needs.Program(t, name)
	}
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "1", "--infiniband")
	s.must("network", "create", "red", "--technology", "infiniband", "--pkey", "0x123")
	s.must("network", "create", "blue", "--technology", "infiniband")
	if a := s.cli("network", "create", "green", "--technology", "infiniband", "--pkey", "0x123"); a.code == 0 || !strings.Contains(a.err, "0x0123") {
		t.Errorf("a second network with the same key: %d %q", a.code, a.err)
	}
	c1 := s.cluster("c1", 1, "--network", "project/red", "--interface", "project/red:pf")
	c2 := s.cluster("c2", 1, "--network", "project/blue", "--interface", "project/blue:pf", "--limited", "project/blue")
	ports := map[string]string{} // GUIDs, by cluster
	for _, line := range regexp.MustCompile(`(?m)^(n[12]) +([0-9a-f]{16}) `).FindAllStringSubmatch(s.must("fabric", "show", "ib0"), -1) {
		switch line[1] {
		case c1.Status.Members[0].Node:
			ports["c1"] = line[2]
		case c2.Status.Members[0].Node:
			ports["c2"] = line[2]
		}
	}
	if len(ports) != 2 {
		t.Fatalf("members are on nodes %s and %s, and the fabric has ports %v", c1.Status.Members[0].Node, c2.Status.Members[0].Node, ports)
	}
	const red, blue = 0x8123, 0x0100 // 0x8000 is the membership bit of full members
	if keys := s.keysOf(ports["c1"]); !keys[red] || keys[blue] || keys[blue|0x8000] {
		t.Errorf("the port of c1 has the keys %v, want 0x8123 and not 0x100", keys)
	}
	if keys := s.keysOf(ports["c2"]); !keys[blue] || keys[blue|0x8000] || keys[red] || keys[red&0x7fff] {
		t.Errorf("the port of c2 has the keys %v, want 0x100 and not 0x8123", keys)
	}
	if out := s.must("fabric", "audit", "ib0"); !strings.Contains(out, "All is as it should be.") {
		t.Errorf("the audit printed %q", out)
	}
	if a := s.cli("cluster", "create", "c3", "--network", "project/red", "--interface", "project/red:pf"); a.code == 0 {
		t.Error("a third member got a port of two")
	}
	s.surviveKill()
	for _, name := range []string{"c1", "c2"} {
		s.must("cluster", "delete", name, "--yes")
	}
	for name, guid := range ports {
		if keys := s.keysOf(guid); keys[red] || keys[blue] {
			t.Errorf("after the delete of %s its port still has the keys %v", name, keys)
		}
	}
	s.must("network", "delete", "project/red", "project/blue")
	s.ownPartition(ports)
}

// ownPartition creates a cluster with a partition of its own by one command, and deletes it. Its members know each other by tunnels. ports are the
// GUIDs of all nodes' ports.
func (s *site) ownPartition(ports map[string]string) {
	s.t.Helper()
	for want, args := range map[string][]string{
		"this site has no VLANs for networks":                                  {"--interface", "pf"},
		"InfiniBand carries no Ethernet":                                       {"--stack", "vm", "--interface", "macvtap", "--interconnect", "infiniband"},
		"gives the cluster a partition, and no group has ports there":          {"--technology", "infiniband"},
		`"pf" is not possible on an own network of technology vxlan`:           {"--technology", "vxlan", "--interface", "pf"},
		"--security-group infiniband=web: its network is not given: --network": {"--technology", "infiniband", "--interface", "pf", "--security-group", "infiniband=web"},
	} {
		if a := s.cli(append([]string{"cluster", "create", "own"}, args...)...); a.code == 0 || !strings.Contains(a.err, want) {
			s.t.Errorf("cluster create %v: %d %q, want %q", args, a.code, a.err, want)
		}
	}
	if a := s.cli("cluster", "create", "large", "--size", "3", "--interface", "pf", "--technology", "infiniband"); a.code == 0 || s.cli("cluster", "show", "large").code == 0 {
		s.t.Errorf("three members with whole ports of two nodes: %d %q; the cluster must not stay", a.code, a.err)
	}
	own := s.cluster("own", 2, "--interface", "pf", "--interconnect", "infiniband")
	if own.Spec.Technology != "infiniband" || own.Spec.Cell != "ib0" {
		s.t.Errorf("its own network is %q in cell %q", own.Spec.Technology, own.Spec.Cell)
	}
	if out := s.must("network", "show", "own:infiniband"); !regexp.MustCompile(`Technology: +infiniband\n`).MatchString(out) || strings.Count(out, " pf ") != 2 {
		s.t.Errorf("its partition is shown as %q", out)
	}
	const key = 0x8100
	for name, guid := range ports {
		if keys := s.keysOf(guid); !keys[key] {
			s.t.Errorf("the port that %s had has the keys %v, want 0x8100", name, keys)
		}
	}
	if out := s.must("run", "own", "--", "getent", "hosts", "own-1"); !strings.Contains(out, own.Status.Members[1].Address) {
		s.t.Errorf("a member finds own-1 at %q", out)
	}
	s.must("run", "own", "--", "ssh", "own-1", "true")
	s.must("cluster", "delete", "own", "--yes")
	for name, guid := range ports {
		if keys := s.keysOf(guid); keys[key] {
			s.t.Errorf("after the delete the port that %s had still has the keys %v", name, keys)
		}
	}
}

// surviveKill lets a second dev be refused, which leaves the fabric alone, and kills the first one: ibsim and OpenSM end with it, and the next one has
// the same partitions.
func (s *site) surviveKill() {
	s.t.Helper()
	before := s.simulators()
	second := startCommand(s.t, exec.CommandContext(s.t.Context(), s.program, "dev", "--infiniband", "--nodes", "2", "--node-cores", "1", "--state", s.dir, "--listen", freeAddress(s.t))).wait()
	if after := s.simulators(); second.code == 0 || len(before) != 2 || !slices.Equal(before, after) {
		s.t.Errorf("a second dev ended with code %d (%s); the fabric's processes were %v and are %v", second.code, second.err, before, after)
	}
	s.kill()
	s.eventually(time.Minute, "ibsim and OpenSM to end with dev", func() bool { return len(s.simulators()) == 0 })
	s.start()
	s.waitForNodes(2)
	for _, name := range []string{"c1", "c2"} {
		s.waitReady(name)
	}
	if out := s.must("fabric", "audit", "ib0"); !strings.Contains(out, "Read 2 ports") || !strings.Contains(out, "All is as it should be.") {
		s.t.Errorf("after the kill the audit printed %q", out)
	}
}

// simulators are the folders in /proc of the ibsim and OpenSM of the site.
func (s *site) simulators() []string {
	s.t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for _, path := range commands {
		line, err := os.ReadFile(path)
		program, args, _ := strings.Cut(string(line), "\x00")
		if name := filepath.Base(program); err == nil && (name == "ibsim" || name == "opensm") && strings.Contains(args, s.dir) {
			all = append(all, filepath.Dir(path))
		}
	}
	return all
}

// keysOf reads the partition keys of a port as anybody on the fabric can, with their membership bits.
func (s *site) keysOf(guid string) map[int]bool {
	s.t.Helper()
	cmd := exec.Command("smpquery", "-G", "pkeys", "0x"+guid)
	cmd.Env = s.onFabric()
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("smpquery: %v: %s", err, out)
	}
	keys := map[int]bool{}
	for _, field := range regexp.MustCompile(`0x[0-9a-f]{4}\b`).FindAllString(string(out), -1) {
		var key int
		if _, err := fmt.Sscanf(field, "0x%x", &key); err != nil {
			s.t.Fatal(err)
		}
		if key != 0 {
			keys[key] = true
		}
	}
	if len(keys) == 0 {
		s.t.Fatalf("smpquery found no keys: %s", out)
	}
	return keys
}

// onFabric is the environment of the site's OpenSM, by which programs are on its simulated fabric.
func (s *site) onFabric() []string {
	s.t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range commands {
		line, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(line), "opensm\x00") || !strings.Contains(string(line), s.dir) {
			continue
		}
		environment, err := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if err == nil {
			return strings.Split(strings.TrimRight(string(environment), "\x00"), "\x00")
		}
	}
	s.t.Fatalf("no OpenSM of the site in %s runs", s.dir)
	return nil
}
