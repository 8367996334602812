package contextualization

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/sshca"
)

var update = flag.Bool("update", false, "write the golden files anew")

func testCluster(t *testing.T, change func(*Cluster)) Cluster {
	t.Helper()
	authority, err := sshca.New(bytes.Repeat([]byte{7}, sshca.MinSecretBytes), "u1", time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := membercert.New(bytes.Repeat([]byte{7}, membercert.MinSecretBytes), "u1")
	if err != nil {
		t.Fatal(err)
	}
	member := func(rank int, name, address string, slots ...int) api.Assignment {
		return api.Assignment{ID: "u1." + name + ".1", Cluster: "c1", Member: name, Rank: rank, Stack: api.StackContainer, Slots: slots, Ports: []api.PortClaim{{Address: netip.MustParseAddr(address)}}}
	}
	cluster := Cluster{
		Name: "c1", Authority: authority, Certificates: certificates, Now: time.Date(2026, 3, 5, 0, 0, 0, 0, time.UTC), User: driver.User{Name: "hpc", UID: 1000, GID: 1000},
		Network: api.Network{Index: 1, Prefix: netip.MustParsePrefix("10.64.16.0/22")},
		// Rank order, not this one, is that of the hostfile.
		Members: []api.Assignment{member(2, "gpu-0", "10.64.17.9", 4), member(0, "c1-0", "10.64.16.2", 0, 1), member(1, "c1-1", "10.64.16.3", 2, 3)},
	}
	if change != nil {
		change(&cluster)
	}
	return cluster
}

func render(t *testing.T, cluster Cluster, assignmentID string) []driver.File {
	t.Helper()
	r, err := New(cluster)
	if err != nil {
		t.Fatal(err)
	}
	files, err := r.Files(assignmentID)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// text shows files as one text. Keys are left out: package sshca tests that they are the same each time.
func text(files []driver.File) string {
	var b strings.Builder
	for _, f := range files {
		owner := "root"
		if f.OwnedByUser {
			owner = "user"
		}
		content := string(f.Content)
		if strings.Contains(content, "PRIVATE KEY") || f.Path == memberconfig.MungeKeyPath {
			content = "(a private key)\n"
		}
		fmt.Fprintf(&b, "==== %s %04o %s\n%s", f.Path, f.Mode, owner, content)
	}
	return b.String()
}

func TestFilesAreAsTheGoldenOnes(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Cluster)
	}{
		{"plain", nil},
		{"metal", func(c *Cluster) { c.Members[1].Stack = api.StackMetal }},
		{"joined", func(c *Cluster) {
			c.Neighbours = []Neighbour{
				{"web-0", "c3", netip.MustParseAddr("10.64.48.9")}, {"db-1", "c2", netip.MustParseAddr("10.64.48.4")}, {"db-0", "c2", netip.MustParseAddr("10.64.48.3")},
			}
			c.Records = []api.NetworkRecord{
				{Name: "licence", Addresses: []string{"10.20.0.5", "fd00::5"}},
				{Name: "db-0.c2", Addresses: []string{"192.0.2.1"}},
				{Name: "c1-1", Addresses: []string{"192.0.2.2"}},
				{Name: "licence", Addresses: []string{"10.20.0.5"}},
				{Name: "c1-0.c1", Addresses: []string{"192.0.2.3"}},
			}
		}},
		{"sharing", func(c *Cluster) {
			for i := range c.Members {
				c.Members[i].SharesMemory = true
			}
		}},
		{"vm", func(c *Cluster) {
			for i := range c.Members {
				c.Members[i].Stack = api.StackVM
			}
		}},
		{"slurm", func(c *Cluster) { slurmCluster(c) }},
		{"egress-oversubscribed", func(c *Cluster) {
			c.Network.Egress = true
			c.Nameservers = []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}
			c.Members[0].Oversubscribed = true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := text(render(t, testCluster(t, c.change), "u1.c1-0.1"))
			path := filepath.Join("testdata", c.name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("files differ (-want +got), write them anew by: go test ./internal/contextualization -update\n%s", diff)
			}
		})
	}
}

func TestOnlyMembersWithAWayOutAskForNamesOfTheOutside(t *testing.T) {
	cluster := testCluster(t, func(c *Cluster) {
		c.Network.UID, c.Joined = "own", []api.Network{{UID: "out", Name: "project/out", Egress: true}}
		c.Nameservers = []netip.Addr{netip.MustParseAddr("192.0.2.53")}
		for i := range c.Members {
			c.Members[i].Ports[0].Network = "own"
		}
		c.Members[1].Ports = append(c.Members[1].Ports, api.PortClaim{Network: "out", Address: netip.MustParseAddr("10.64.48.2")})
	})
	for id, want := range map[string]bool{"u1.c1-0.1": true, "u1.c1-1.1": false} {
		files := text(render(t, cluster, id))
		if got := strings.Contains(files, "nameserver 192.0.2.53"); got != want || strings.Contains(files, "hosts: files dns") != want {
			t.Errorf("%s asks for names of the outside: got %t, want %t, in\n%s", id, got, want, files)
		}
	}
}

func TestRanksUseMemoryOnlyWhereEveryMemberSharesItAndTheyAreFew(t *testing.T) {
	all := func(c *Cluster) {
		for i := range c.Members {
			c.Members[i].SharesMemory = true
		}
	}
	slots := func(n int) func(c *Cluster) {
		return func(c *Cluster) {
			all(c)
			others := len(c.Members[1].Slots) + len(c.Members[2].Slots)
			c.Members[0].Slots = make([]int, n-others)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*Cluster)
		want   bool
	}{
		{"all share", all, true},
		{"one of them shares", func(c *Cluster) { c.Members[0].SharesMemory = true }, false},
		{"all but one of them share", func(c *Cluster) { all(c); c.Members[2].SharesMemory = false }, false},
		{"as many ranks as may be connected", slots(mostConnectedRanks), true},
		{"one rank more", slots(mostConnectedRanks + 1), false},
	} {
		if got := strings.Contains(text(render(t, testCluster(t, tt.change), "u1.c1-0.1")), memberconfig.RankLibrary); got != tt.want {
			t.Errorf("%s: ranks use memory: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestRenderingAgainGivesTheSameBytes(t *testing.T) {
	first := render(t, testCluster(t, nil), "u1.c1-1.1")
	again := render(t, testCluster(t, func(c *Cluster) { c.Members[0], c.Members[2] = c.Members[2], c.Members[0] }), "u1.c1-1.1")
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the same members in another order (-first +again):\n%s", diff)
	}
}

func TestPrivateKeysOfAMemberAreInItsOwnFilesOnly(t *testing.T) {
	cluster := testCluster(t, func(c *Cluster) { c.Members[1].Stack = api.StackMetal })
	owners := map[string]string{}
	for _, m := range cluster.Members {
		keys := 0
		for _, f := range render(t, cluster, m.ID) {
			if !bytes.Contains(f.Content, []byte("PRIVATE KEY")) {
				continue
			}
			keys++
			if other, taken := owners[string(f.Content)]; taken {
				t.Errorf("%s of %s is also %s", f.Path, m.Member, other)
			}
			owners[string(f.Content)] = f.Path + " of " + m.Member
			if f.Mode != 0o600 {
				t.Errorf("%s of %s has mode %o", f.Path, m.Member, f.Mode)
			}
			if strings.HasPrefix(f.Path, "home/") {
				t.Errorf("%s of %s lies in the shared home", f.Path, m.Member)
			}
		}
		if want := map[api.Stack]int{api.StackContainer: 3, api.StackMetal: 4}[m.Stack]; keys != want {
			t.Errorf("%s has %d private keys, want %d: the host's, two of the user, and that of a whole machine's member agent", m.Member, keys, want)
		}
	}
}

func TestWhatCannotBeTrueIsRefused(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Cluster)
	}{
		{"no SSH authority", func(c *Cluster) { c.Authority = nil }},
		{"no authority of certificates", func(c *Cluster) { c.Certificates = nil }},
		{`user "root" (0) is not an unprivileged one`, func(c *Cluster) { c.User = driver.User{Name: "root"} }},
		{"two members are called c1-0", func(c *Cluster) { c.Members[2].Member = "c1-0" }},
		{`"c1 0" is no name`, func(c *Cluster) { c.Members[1].Member = "c1 0" }},
		{`"*" is no name`, func(c *Cluster) { c.Members[1].Member = "*" }},
		{"has no address of its own", func(c *Cluster) { c.Members[2].Ports = c.Members[1].Ports }},
		{"has no address of its own", func(c *Cluster) { c.Members[2].Ports = nil }},
		{"both have rank 0", func(c *Cluster) { c.Members[2].Rank = 0 }},
		{`"db 0" of cluster "c2"`, func(c *Cluster) { c.Neighbours = []Neighbour{{"db 0", "c2", netip.MustParseAddr("10.64.48.3")}} }},
		{`"db-0" of cluster "c2.c1"`, func(c *Cluster) { c.Neighbours = []Neighbour{{"db-0", "c2.c1", netip.MustParseAddr("10.64.48.3")}} }},
		{`is no neighbour`, func(c *Cluster) { c.Neighbours = []Neighbour{{Member: "db-0", Cluster: "c2"}} }},
		{"has no cores", func(c *Cluster) { c.Members[2].Slots = nil }},
	} {
		if _, err := New(testCluster(t, c.change)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
	r, err := New(testCluster(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Files("u1.other.1"); err == nil || !strings.Contains(err.Error(), "u1.other.1 is not among those") {
		t.Errorf("an assignment of another cluster: %v", err)
	}
}

// BenchmarkRender renders all files of a cluster's members, once a member.
func BenchmarkRender(b *testing.B) {
	authority, err := sshca.New(bytes.Repeat([]byte{7}, sshca.MinSecretBytes), "u1", time.Unix(0, 0))
	if err != nil {
		b.Fatal(err)
	}
	certificates, err := membercert.New(bytes.Repeat([]byte{7}, membercert.MinSecretBytes), "u1")
	if err != nil {
		b.Fatal(err)
	}
	cluster := Cluster{
		Name: "c1", Authority: authority, Certificates: certificates, User: driver.User{Name: "hpc", UID: 1000, GID: 1000},
		Network: api.Network{Prefix: netip.MustParsePrefix("10.64.16.0/20")},
	}
	address := cluster.Network.Prefix.Addr()
	for i := range 1000 {
		address = address.Next()
		name := fmt.Sprintf("c1-%d", i)
		cluster.Members = append(cluster.Members, api.Assignment{ID: "u1." + name + ".1", Member: name, Rank: i, Slots: []int{i}, Ports: []api.PortClaim{{Address: address}}})
	}
	for b.Loop() {
		r, err := New(cluster)
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range cluster.Members {
			if _, err := r.Files(m.ID); err != nil {
				b.Fatal(err)
			}
		}
	}
}
