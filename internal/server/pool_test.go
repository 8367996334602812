package server

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/placement"
)

func TestThePoolOfNetworksIsCheckedBeforeAnythingStarts(t *testing.T) {
	if pool, err := networkPool(""); err != nil || pool != placement.DefaultPool {
		t.Errorf("without the option: %v, %v", pool, err)
	}
	for text, want := range map[string]string{
		"10.1.0.0": "is not a prefix", "10.1.0.0/20": "/19 or shorter", "fd00::/8": "an IPv4 prefix", "127.0.0.0/8": "reserved",
	} {
		if _, err := networkPool(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", text, err, want)
		}
	}
	cfg := testConfig(t.TempDir(), "127.0.0.1:0")
	cfg.NetworkPool = "10.1.0.0/20"
	if s, err := Open(cfg); err == nil {
		s.Close()
		t.Error("a server was opened with a pool without room")
	}
}

func TestAPoolThatOverlapsTheMachinesOwnNetworkIsRefused(t *testing.T) {
	needs.Root(t, "makes a network namespace")
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	if err := space.Do(func() error {
		if out, err := exec.Command("sh", "-ec", "ip link add eth7 type bridge; ip address add 172.20.5.1/24 dev eth7; ip link add nmbr1 type bridge; ip address add 172.24.16.1/20 dev nmbr1").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, err := networkPool("172.20.0.0/14")
		if err == nil || !strings.Contains(err.Error(), "172.20.5.0/24 on eth7") {
			t.Errorf("got %v, want an error that names the network and its link", err)
		}
		pool, err := networkPool("172.24.0.0/14") // in use by a cluster of this site, which keeps it
		if err != nil || pool.String() != "172.24.0.0/14" {
			t.Errorf("got %v, %v", pool, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
