package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestAddressesAndNamesAreAnsweredOnEveryNode(t *testing.T) {
	program(t, ordinary)
	needs.Program(t, "busybox")
	needs.Program(t, "dig")
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	clean := s.lookAtNodes()
	s.must("network", "create", "lab", "--prefix", "10.64.128.0/24")
	one, two := s.cluster("one", 3, "--network", "project/lab"), s.cluster("two", 1, "--network", "project/lab=10.64.128.20")
	if m := one.Status.Members; m[0].Node == m[2].Node {
		t.Fatalf("cluster one has to be on two nodes: %+v", m)
	}
	var own, lab api.NetworkStatus
	s.mustJSON(&own, "network", "show", "one")
	s.mustJSON(&lab, "network", "show", "project/lab")
	for _, m := range one.Status.Members {
		for link, want := range map[string]string{
			"eth0": fmt.Sprintf("%s %s one.nearmetal.internal %s", m.Address, own.Gateway, m.Name),
			"eth1": fmt.Sprintf("%s %s one.nearmetal.internal %s", m.Networks[0].Address, lab.Gateway, m.Name),
		} {
			if got := s.leased(one, m, link); got != want {
				t.Errorf("at %s of %s on %s, a DHCP client gets %q, want %q", link, m.Name, m.Node, got, want)
			}
		}
	}
	friend, last := two.Status.Members[0].Networks[0].Address, one.Status.Members[2]
	for question, want := range map[string]string{
		"two-0.two.nearmetal.internal": friend, last.Name + ".one.nearmetal.internal": last.Address, "-x " + friend: "two-0.two.nearmetal.internal.",
	} {
		answers := openMPIWarning.ReplaceAllString(s.must(append([]string{"run", "one", "-n", "3", "--", "dig", "+short", "+tries=5", "+time=1", "@" + own.Gateway.String()}, strings.Fields(question)...)...), "")
		if got := strings.Fields(answers); len(got) != 3 || got[0] != want || got[1] != want || got[2] != want {
			t.Errorf("dig %s in the members of cluster one: got %q, want %s from each", question, answers, want)
		}
	}
	s.must("network", "set", "project/lab", "--add-record", "licence=10.20.0.5", "--add-record", "Store.Lab=10.20.0.6,10.20.0.7")
	s.must("network", "set", "project/lab", "--remove-record", "licence", "--add-record", "store.lab=10.20.0.7")
	if shown := s.must("network", "show", "project/lab"); !strings.Contains(shown, "store.lab  10.20.0.7\n") || strings.Contains(shown, "licence") {
		t.Errorf("after a change of records, the network is shown as\n%s", shown)
	}
	s.eventually(time.Minute, "members know the record by /etc/hosts and by DNS", func() bool {
		return s.must("run", "two", "--", "sh", "-c", "getent ahostsv4 store.lab | head -1 | cut -d' ' -f1; dig +short @"+lab.Gateway.String()+" store.lab") == "10.20.0.7\n10.20.0.7\n"
	})
	s.wantAddressRefused(exitConflict, `taken by member two-0 of cluster "two"`, "--network", "project/lab=10.64.128.20")
	s.wantAddressRefused(exitUsage, "is not in subnet 10.64.128.0/24", "--network", "project/lab=10.64.16.20")
	s.wantAddressRefused(exitUsage, "is reserved", "--network", "project/lab=10.64.128.1")
	s.wantAddressRefused(exitUsage, "fixes an address, which only a group of one member can have", "--size", "2", "--network", "project/lab=10.64.128.21")
	healed := s.waitReplaced(s.killMembers("two", "two-0"), []string{"two-0"})
	for _, pid := range s.agents() { // a new one answers again
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	member := healed.Status.Members[0]
	if want := "10.64.128.20 10.64.128.1 two.nearmetal.internal two-0"; friend != "10.64.128.20" || s.leased(healed, member, "eth1") != want {
		t.Errorf("a fixed address is %s first; after a replacement and a restart of the agents, a DHCP client gets %q, want %q", friend, s.leased(healed, member, "eth1"), want)
	}
	s.must("cluster", "delete", "one", "two", "--yes")
	s.must("network", "delete", "project/lab")
	s.wantNothingOf(one.UID, clean)
	s.wantNothingOf(two.UID, clean)
}

// wantAddressRefused wants that a cluster with a fixed address is refused for a reason.
func (s *site) wantAddressRefused(code int, reason string, args ...string) {
	s.t.Helper()
	if a := s.cli(append([]string{"cluster", "create", "late"}, args...)...); a.code != code || !strings.Contains(a.err, reason) {
		s.t.Errorf("cluster create late %s: code %d, %s; want %d and %q", strings.Join(args, " "), a.code, a.err, code, reason)
	}
}

// leased is what a DHCP client at a member's interface gets: address, server, domain and host name. The client changes nothing there.
func (s *site) leased(c api.Cluster, m api.MemberStatus, link string) string {
	s.t.Helper()
	dir := s.t.TempDir()
	script, told := filepath.Join(dir, "script"), filepath.Join(dir, "told")
	text := "#!/bin/sh\n[ $1 = bound ] || exit 0\necho $ip $serverid $domain $hostname > " + told + "\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		s.t.Fatal(err)
	}
	space := fmt.Sprintf("--net=/proc/%d/ns/net", s.processAt(c, m))
	client := []string{space, "busybox", "udhcpc", "-i", link, "-f", "-n", "-q", "-t", "10", "-T", "1", "-O", "hostname", "-s", script}
	if out, err := exec.CommandContext(s.t.Context(), "nsenter", client...).CombinedOutput(); err != nil {
		s.t.Fatalf("the DHCP client at %s of %s: %v\n%s", link, m.Name, err, out)
	}
	got, err := os.ReadFile(told)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(got))
}
