package boot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// pausable are machines with a disk, of which a cluster of two is made.
func pausable(t *testing.T, names ...string) *site {
	t.Helper()
	var machines []vdc.MachineConfig
	for _, name := range names {
		machines = append(machines, vdc.MachineConfig{Name: name, Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, DiskBytes: []int64{64 << 20}})
	}
	s := newSite(t, machines)
	for _, name := range names {
		s.enrollInspected(name, api.PowerRedfish)
	}
	s.awaitInspected(names...)
	s.run("cluster", "create", "m1", "--stack", "metal", "--size", "2", "--env", "debian-mpi")
	return s
}

// onMember runs a script as root of a member.
func (s *site) onMember(member, script string) string {
	s.t.Helper()
	return strings.TrimSpace(s.run("cluster", "ssh", "m1", member, "--root", "--", "set -e; "+script))
}

// nodeOf is the machine of a member.
func (s *site) nodeOf(member string) string {
	s.t.Helper()
	for _, m := range s.cluster("m1").Status.Members {
		if m.Name == member && m.Phase != api.MemberReleasing {
			return m.Node
		}
	}
	s.t.Fatalf("there is no member %s", member)
	return ""
}

const (
	installed = `mkdir -p /opt/solver && printf '#!/bin/sh\necho solved\n' > /opt/solver/run && chmod 4755 /opt/solver/run
		rm /etc/debian_version; rm -r /etc/default && mkdir /etc/default && echo mine > /etc/default/solver
		useradd --system solver; echo log > /var/log/solver.log; echo kept > /var/tmp/scratch; echo gone > /tmp/scratch
		printf 'on the disk' > /dev/vda; sync`
	looked = `/opt/solver/run; stat -c %a /opt/solver/run; test ! -e /etc/debian_version; cat /etc/default/*; id -un $(id -u solver); cat /var/log/solver.log /var/tmp/scratch
		test ! -e /tmp/scratch`
	found = "solved\n4755\nmine\nsolver\nlog\nkept"
)

// A cluster of whole machines is paused and resumed: meanwhile its machines are off and nobody else's, and afterwards its files are there.
func TestAClusterOfWholeMachinesIsPausedAndResumed(t *testing.T) {
	s := pausable(t, "b1", "b2")
	s.onMember("m1-1", installed)
	s.run("cluster", "ssh", "m1", "--", "echo 42 > result; mkdir -m 700 -p .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_own")
	identity := "cat /etc/ssh/ssh_host_ed25519_key.pub; ip -4 -o addr show scope global | awk '{print $4}' | sort; hostname"
	before := s.onMember("m1-1", identity)
	was := map[string]string{"m1-0": s.nodeOf("m1-0"), "m1-1": s.nodeOf("m1-1")}

	// A key of the cluster itself is never stored: nothing goes off.
	s.onMember("m1-0", "cp /etc/nearmetal/ssh/id_ed25519 /opt/taken")
	s.refused("keys of the cluster itself are in \"/opt/taken\"", "cluster", "pause", "m1")
	if c := s.cluster("m1"); c.Status.Phase != api.ClusterReady || c.Status.Paused {
		t.Errorf("after a pause that was refused the cluster is %s, paused: %v", c.Status.Phase, c.Status.Paused)
	}
	s.onMember("m1-0", "rm /opt/taken")

	began := time.Now()
	s.run("cluster", "pause", "m1")
	t.Logf("measured: two machines were off %.0f s after the pause was asked for", time.Since(began).Seconds())
	t.Log(s.run("cluster", "show", "m1"), s.run("node", "list"), s.run("node", "show", "b1"))
	for _, name := range []string{"b1", "b2"} {
		if state, err := s.dc.Power(name); err != nil || state != api.PowerOff {
			t.Errorf("machine %s of the paused cluster is %s, %v", name, state, err)
		}
	}
	// Nobody else gets them, nothing cleans them.
	s.refused("b1, b2 are ", "cluster", "create", "m2", "--stack", "metal", "--env", "debian-mpi")
	s.refused("m1", "node", "clean", "b1", "--yes")
	s.refused("m1", "node", "power", "on", "b1", "--env", "debian-mpi")
	if text := s.imageBytes("b1", "b2"); strings.Count(text, "on the disk") != 1 {
		t.Errorf("the disks of the paused machines begin with %q", text)
	}

	// A server that starts meanwhile leaves them as they are.
	s.stop()
	s.start()
	began = time.Now()
	s.run("cluster", "resume", "m1")
	t.Logf("measured: the cluster was ready %.0f s after it was to resume", time.Since(began).Seconds())
	for member, node := range was {
		if now := s.nodeOf(member); now != node {
			t.Errorf("%s is on %s, and was on %s", member, now, node)
		}
	}
	if got := s.onMember("m1-1", looked); got != found {
		t.Errorf("after the pause the member has %q, want %q", got, found)
	}
	if got := s.onMember("m1-1", "head -c 11 /dev/vda"); got != "on the disk" {
		t.Errorf("the machine's disk begins with %q", got)
	}
	if got := s.run("cluster", "ssh", "m1", "--", "cat result; stat -c %U .ssh/id_own"); got != "42\nhpc\n" {
		t.Errorf("the user's home has %q", got)
	}
	if after := s.onMember("m1-1", identity); after != before {
		t.Errorf("the member was %q, and is %q", before, after)
	}
	hosts := s.saidByRanks("m1", 4, "hostname")
	slices.Sort(hosts)
	if want := []string{"m1-0", "m1-0", "m1-1", "m1-1"}; !slices.Equal(hosts, want) {
		t.Errorf("four ranks ran on %v, want %v", hosts, want)
	}

	// Once more, and the cluster ends while it is paused: the machines are cleaned.
	s.run("cluster", "pause", "m1")
	s.run("cluster", "delete", "m1", "--yes")
	for _, name := range []string{"b1", "b2"} {
		s.waitUntil(name, "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil && r.Clean != nil })
	}
	if text := s.imageBytes("b1", "b2"); strings.Contains(text, "on the disk") {
		t.Errorf("the disks of the cleaned machines begin with %q", text)
	}
}

// imageBytes are the beginnings of machines' disks, seen from outside.
func (s *site) imageBytes(names ...string) (text string) {
	s.t.Helper()
	for _, name := range names {
		data := make([]byte, 32)
		_, err := readAt(s.disk(name, 0), data, 0)
		must(s.t, err)
		text += strings.TrimRight(string(data), "\x00") + "|"
	}
	return text
}

// A machine of a paused cluster is powered on by somebody: it is the member's no more. Another machine gets the files of the root.
func TestAMachineThatWasOnInAPauseIsReplacedWithItsFiles(t *testing.T) {
	s := pausable(t, "b1", "b2", "b3")
	s.onMember("m1-1", installed)
	s.run("cluster", "pause", "m1")
	was, rank0 := s.nodeOf("m1-1"), s.nodeOf("m1-0")
	must(t, s.dc.PressPower(was))
	s.until(2*time.Minute, "the member to be lost", func() bool {
		return strings.Contains(s.run("cluster", "events", "m1"), "while its cluster is paused")
	})
	t.Log(s.run("cluster", "show", "m1"))
	began := time.Now()
	s.run("cluster", "resume", "m1")
	t.Logf("measured: the cluster was ready, with another machine, %.0f s after it was to resume", time.Since(began).Seconds())
	if now := s.nodeOf("m1-1"); now == was {
		t.Errorf("the member is on %s again", now)
	}
	if now := s.nodeOf("m1-0"); now != rank0 {
		t.Errorf("the other member is on %s, and was on %s", now, rank0)
	}
	if got := s.onMember("m1-1", looked); got != found {
		t.Errorf("after the pause the member has %q, want %q", got, found)
	}
	if got := s.onMember("m1-1", "head -c 11 /dev/vda | tr -d '\\0'"); got != "" {
		t.Errorf("the disk of the other machine begins with %q", got)
	}
	if hosts := s.saidByRanks("m1", 4, "hostname"); len(hosts) != 4 {
		t.Errorf("four ranks ran on %v", hosts)
	}
	s.waitUntil(was, "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil && r.Clean != nil })
	s.run("cluster", "delete", "m1", "--yes")
}
