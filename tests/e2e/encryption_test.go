package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fabricnode "github.com/nearmetal/nearmetal/internal/fabric/node"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// Nodes of a site with an encrypted underlay exchange frames through WireGuard, and keep their keys to themselves.
func TestASiteWithAnEncryptedUnderlayRunsAJobOverTwoNodes(t *testing.T) {
	program(t, ordinary)
	if err := fabricnode.CanEncrypt(); errors.Is(err, fabricnode.ErrNoWireGuard) {
		needs.Hardware(t, "%v (make test-network-guest has one)", err)
	} else if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "1", "--encrypt-underlay")
	clean := s.lookAtNodes()
	s.must("network", "create", "lab")
	c := s.cluster("c1", 2, "--network", "project/lab")
	near, far := c.Status.Members[0], c.Status.Members[1]
	if near.Node == far.Node {
		t.Fatalf("the members have to be on two nodes: %+v, %+v", near, far)
	}
	out := openMPIWarning.ReplaceAllString(s.must("run", "c1", "-n", "2", "--", "hostname"), "")
	if got := strings.Fields(out); len(got) != 2 || got[0] == got[1] {
		t.Errorf("hostname on 2 ranks printed %q, want the names of both members", out)
	}
	s.wantCheck(0, near.Node+"    hears "+far.Node+"  ok", far.Node+"    hears "+near.Node+"  ok")
	t.Logf("the check printed:\n%s", s.must("network", "check", "project/lab"))
	for _, node := range []string{near.Node, far.Node} {
		fields := strings.Fields(s.inSpaceOf(node, "ip -o -4 address show dev nmwg"))
		address, inside := strings.CutSuffix(fields[3], "/4")
		links := s.inSpaceOf(node, "ip -d -o link show type vxlan")
		if !inside || !strings.Contains(links, " local "+address+" ") {
			t.Errorf("%s has the address %v inside, and tunnels that are not there:\n%s", node, fields, links)
		}
		info, err := os.Stat(filepath.Join(s.dir, "nodes", node, "wireguard.key"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key of %s: %v, %v, want a file of mode 0600", node, info, err)
		}
	}
	s.must("cluster", "delete", "c1", "--yes")
	s.must("network", "delete", "project/lab")
	s.wantNothingOf(c.UID, clean)
}
