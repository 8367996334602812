package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// The near end of the link to a far server, on a node, and its far end.
var (
	farNear = netip.MustParsePrefix("192.0.2.1/30")
	farHere = netip.MustParsePrefix("192.0.2.2/30")
)

// farXRootD serves files by XRootD in a network namespace at the far end of a link with a condition, whose near end is on a node.
func (s *site) farXRootD(node string, way condition.Condition) (f *files, url string) {
	t := s.t
	t.Helper()
	near, err := netns.Open(filepath.Join(s.dir, "spaces", node, "net"))
	if err != nil {
		t.Fatal(err)
	}
	far, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	link, err := condition.Open(condition.Config{Near: condition.End{Space: near, Name: "far0", Address: farNear}, Far: condition.End{Space: far, Name: "far0", Address: farHere}, There: way, Back: way})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(link.Close(), far.Close(), near.Close()) })
	if err := far.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "xrd") // its own user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f = &files{t: t, dir: filepath.Join(dir, "files")}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(f.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	server, err := xrootd.StartServer(t.Context(), far, xrootd.ServerConfig{Address: netip.AddrPortFrom(farHere.Addr(), 1094), Dir: f.dir, Work: filepath.Join(dir, "work")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	return f, "root://" + farHere.Addr().String() + "//"
}

// readSome reads a part of the first file of a dataset's list, in requests of 256 KiB, one after the other.
func readSome(dataset string, kib int) string {
	return fmt.Sprintf("XRD_CPCHUNKSIZE=262144 XRD_CPPARALLELCHUNKS=1 xrdcp -s $(head -n 1 /etc/nearmetal/datasets/%s.urls) - 2>/dev/null | head -c %d | wc -c", dataset, kib<<10)
}

// claimOf is how the first member of a cluster has a dataset.
func (s *site) claimOf(cluster, dataset string) api.DataClaim {
	s.t.Helper()
	var c api.Cluster
	s.mustJSON(&c, "cluster", "show", cluster)
	for _, m := range c.Status.Members {
		for _, d := range m.Data {
			if d.Name == dataset {
				return d
			}
		}
	}
	s.t.Fatalf("cluster %s says nothing of dataset %s: %+v", cluster, dataset, c.Status.Members)
	return api.DataClaim{}
}

func TestTheWayOfADatasetIsChosenByWhatItIsPredictedToTake(t *testing.T) {
	program(t, ordinary)
	for _, name := range []string{"xrootd", "xrdcp", "setpriv"} {
		needs.Program(t, name)
	}
	nothingLeft(t)
	s := startSite(t, 1, "--node-cores", "4")
	web, source := s.farXRootD("n1", condition.Condition{Delay: 40 * time.Millisecond, Seed: 1})
	const size = 24 << 20
	sums := map[string]string{}
	for _, name := range []string{"learn", "far"} {
		sha, adler := web.add(name, size)
		sums[name] = sha
		s.must("dataset", "add", name, "--file", fmt.Sprintf("%s%s,adler32=%s,size=%d", source, name, adler, size))
	}
	// Nothing was measured, so nothing is predicted, and the data are copied. That tells what the path carries.
	s.must("cluster", "create", "c0", "--memory", "256MiB", "--dataset", "learn:auto", "--timeout", "1m")
	if d := s.claimOf("c0", "learn"); d.Way != api.DatasetCopy || d.Seconds != nil {
		t.Errorf("with nothing measured: %+v, want a copy without a prediction", d)
	}
	if got := s.outputOf("c0", "cat /etc/nearmetal/datasets/learn.urls; sha256sum < $(cat /etc/nearmetal/datasets/learn.urls)"); got != "/datasets/learn/learn\n"+sums["learn"]+"  -" {
		t.Errorf("a copy whose way was left open is listed as %q", got)
	}
	s.eventually(time.Minute, "the path to be known", func() bool {
		var ex explained
		s.mustJSON(&ex, "cluster", "explain", "c0")
		return slices.ContainsFunc(ex.Choices, func(c api.DataChoice) bool { return c.Choice == "cold cache" && c.Seconds != nil })
	})

	// A member that reads a small part waits less by a cache, and one that reads all waits less for a copy.
	s.must("cluster", "create", "c1", "--memory", "256MiB", "--dataset", "far:auto:0.05", "--timeout", "2m")
	if d := s.claimOf("c1", "far"); d.Way != api.DatasetCached || d.Choice != "cold cache" || d.Seconds == nil || d.Reads != 0.05 || len(d.Options) < 3 {
		t.Fatalf("for a twentieth: %+v, want the cache", d)
	}
	if got := s.outputOf("c1", "cat /etc/nearmetal/datasets/far.urls; ls -d /datasets/* 2>/dev/null | wc -l"); got != "root://127.0.0.1:10940//far\n0" {
		t.Errorf("members that read by the cache find %q", got)
	}
	if got := s.outputOf("c1", readSome("far", 1300)); got != fmt.Sprint(1300<<10) {
		t.Errorf("a part through the cache: %q", got)
	}
	s.eventually(time.Minute, "what was read to be known", func() bool { return s.dataset("far").Reads != nil })
	if r := s.dataset("far").Reads; r.Members != 1 || r.Fraction < 0.05 || r.Fraction > 0.2 {
		t.Errorf("1300 KiB of 24 MiB were read in requests of 256 KiB, and learned is %+v", r)
	}
	s.eventually(time.Minute, "the outcome", func() bool {
		return slices.ContainsFunc(s.dataset("far").Errors, func(e api.DataErrors) bool { return e.Choice == "cold cache" && e.Count == 1 })
	})
	s.must("cluster", "create", "c2", "--memory", "256MiB", "--dataset", "far:auto:1", "--timeout", "2m")
	if d := s.claimOf("c2", "far"); d.Way != api.DatasetCopy || d.Choice != "copy" || d.Seconds == nil {
		t.Fatalf("for all: %+v, want a copy", d)
	}
	if got := s.outputOf("c2", "sha256sum < $(cat /etc/nearmetal/datasets/far.urls)"); got != sums["far"]+"  -" {
		t.Errorf("the copy has %q", got)
	}
	t.Logf("%s\n%s", s.must("cluster", "show", "c1"), s.must("cluster", "explain", "c1"))
	t.Logf("%s\n%s", s.must("cluster", "explain", "c2"), s.must("dataset", "show", "far"))

	// What was decided stays as it is, whatever becomes known, and over a crash.
	s.kill()
	s.start()
	s.waitForNodes(1)
	if d := s.claimOf("c1", "far"); d.Way != api.DatasetCached {
		t.Errorf("after a crash: %+v", d)
	}
	s.eventually(time.Minute, "the cache to run again", func() bool {
		all := s.dataset("far").Caches
		return len(all) == 1 && all[0].Running
	})
	if got := s.outputOf("c1", readSome("far", 300)); got != fmt.Sprint(300<<10) {
		t.Errorf("after a crash, a part through the cache: %q", got)
	}
	// A node that has all is taken by members that say nothing: nothing is quicker.
	s.must("cluster", "create", "c3", "--memory", "256MiB", "--dataset", "far:auto", "--timeout", "2m")
	if d := s.claimOf("c3", "far"); d.Choice != "here" || d.Way != api.DatasetCopy || d.Reads >= 0.2 || !strings.Contains(d.Options[len(d.Options)-1].Figures, "learned from 1 members") {
		t.Errorf("where a node has all: %+v, want that node, and the fraction that was learned", d)
	}
	s.must("cluster", "delete", "c0", "c1", "c2", "c3", "--yes")
	s.must("dataset", "delete", "learn", "far")
}
