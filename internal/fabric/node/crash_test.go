//go:build failpoints

package node

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// marks finds the failpoints of this package in its source.
func marks(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`failpoint\.Hit\("([^"]+)"\)`).FindAllStringSubmatch(string(source), -1) {
			names = append(names, m[1])
		}
	}
	if len(names) < 5 {
		t.Fatalf("found only %v", names)
	}
	return names
}

// limitedNetworks are wideNetworks with limits of ports.
func limitedNetworks() []fabric.Network {
	networks := wideNetworks()
	one, three := networks[0].Ports, networks[2].Ports
	one[0].Quality, one[1].Quality = api.Quality{MinRate: 1e7, MaxRate: 1e9, DSCP: "10"}, api.Quality{MaxRate: 1e9}
	three[0].Quality = api.Quality{DSCP: "46"}
	return networks
}

// TestLife is a life of the fabric in the network namespace of the process; TestKill runs it in a process that dies.
func TestLife(t *testing.T) {
	needs.Child(t, "NEARMETAL_TEST_MEMBER")
	space := os.Getenv("NEARMETAL_TEST_MEMBER")
	f, err := New(Config{Config: plan.Config{Underlay: underlayOfWideNode}})
	if err != nil {
		t.Fatal(err)
	}
	networks := limitedNetworks()
	apply(t, f, networks...)
	port, place := networks[0].Ports[0], fabric.Namespace(space)
	for range 2 {
		if err := f.Attach(context.Background(), port, place); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Detach(context.Background(), port.ID); err != nil {
		t.Fatal(err)
	}
	if err := f.Attach(context.Background(), port, fabric.TAP(port)); err != nil {
		t.Fatal(err)
	}
	// A peer that was heard through the tunnel leaves the network, and what was learned of it is forgotten.
	former := networks[2].Remotes[0]
	learned := "bridge fdb append " + former.MAC + " dev " + plan.TunnelName(3) + " dst " + former.Peer.String() + " self dynamic"
	if out, err := exec.Command("sh", "-c", learned).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", learned, err, out)
	}
	networks[2].Remotes, networks[3].Remotes = networks[2].Remotes[1:], networks[3].Remotes[1:]
	networks[0].Ports[0].Quality = api.Quality{}
	networks[1].Floating = nil
	apply(t, f, networks...)
	apply(t, f)
}

func TestAKillAtAnyFailpointIsMendedByTheNextProcess(t *testing.T) {
	space, cfg := newWideNode(t)
	before := space.snapshot(t)
	networks := limitedNetworks()
	for _, mark := range marks(t) {
		member := newSpace(t)
		cmd := exec.Command(os.Args[0], "-test.run=^TestLife$")
		cmd.Env = append(os.Environ(), "NEARMETAL_FAILPOINT="+mark, "NEARMETAL_TEST_MEMBER="+member.Path())
		var out []byte
		err := space.Do(func() (err error) {
			out, err = cmd.CombinedOutput()
			return err
		})
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || status.Signal() != syscall.SIGKILL {
			t.Errorf("%s: the process was not killed there: %v\n%s", mark, err, out)
		}
		f := newFabric(t, space, cfg)
		apply(t, f, networks...)
		a, b := attach(t, f, networks[0], 0), attach(t, f, networks[0], 1)
		mustReach(t, a.namespace, "another member, after a kill at "+mark, b.address())
		apply(t, f)
		if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(space.snapshot(t), "\n")); diff != "" {
			t.Errorf("%s: -before +after:\n%s", mark, diff)
		}
	}
}
