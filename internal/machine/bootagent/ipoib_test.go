package bootagent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

const ipoibGUID = "0e6d000000010002"

// ipoibGuest is a tree of sysfs whose kernel makes children of IPoIB interfaces, as linux/drivers/infiniband/ulp/ipoib does.
type ipoibGuest struct {
	t      *testing.T
	dir    string
	writes []string
	next   int
	// enhanced refuses connected mode, and lazy makes no child.
	enhanced, lazy bool
}

func newIPoIBGuest(t *testing.T, name, key string) *ipoibGuest {
	g := &ipoibGuest{t: t, dir: t.TempDir(), next: 2}
	g.add(name, key, 0)
	other := g.dir + "/ibother"
	g.put(other, "address", "80:00:00:49:fe:80:00:00:00:00:00:00:0e:6d:00:00:00:01:00:03")
	g.put(other, "pkey", "0x8112")
	g.put(g.dir+"/eth9", "address", "02:6e:00:01:00:02")
	return g
}

func (g *ipoibGuest) put(dir, file, text string) {
	g.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

func (g *ipoibGuest) add(name, key string, parent int) {
	index := g.next
	g.next++
	if parent == 0 {
		parent = index
		g.put(g.dir+"/"+name, "create_child", "")
	}
	dir := g.dir + "/" + name
	g.put(dir, "address", "80:00:00:48:fe:80:00:00:00:00:00:00:0e:6d:00:00:00:01:00:02")
	g.put(dir, "pkey", key)
	g.put(dir, "mode", "datagram")
	g.put(dir, "ifindex", fmt.Sprint(index))
	g.put(dir, "iflink", fmt.Sprint(parent))
}

func (g *ipoibGuest) tree() ipoibTree {
	return ipoibTree{g.dir, func(file, text string) error {
		name, err := filepath.Rel(g.dir, file)
		if err != nil {
			return err
		}
		g.writes = append(g.writes, name+" "+strings.TrimSpace(text))
		nic, what := filepath.Split(name)
		switch {
		case what == "create_child" && !g.lazy:
			g.add(filepath.Clean(nic)+"."+strings.TrimPrefix(text, "0x"), text, 2)
		case what == "mode" && g.enhanced:
			return os.ErrInvalid
		case what == "mode":
			g.put(filepath.Dir(file), what, strings.TrimSpace(text))
		}
		return nil
	}}
}

func TestAGuestUsesThePortOrMakesAChildForItsPartition(t *testing.T) {
	for name, c := range map[string]struct {
		key       string
		connected bool
		want      string
		writes    []string
	}{
		"the port's first partition":              {"0x8112", false, "ib0", nil},
		"the port's first, as a limited member":   {"0x0112", false, "ib0", nil},
		"the port's first, connected":             {"0x8112", true, "ib0", []string{"ib0/mode connected"}},
		"a whole port's default partition":        {"0xffff", false, "ib0.8112", []string{"ib0/create_child 0x8112"}},
		"a whole port's default partition, conn.": {"0xffff", true, "ib0.8112", []string{"ib0/create_child 0x8112", "ib0.8112/mode connected"}},
	} {
		g := newIPoIBGuest(t, "ib0", c.key)
		i := guestlink.Interface{GUID: ipoibGUID, PKey: 0x112, Connected: c.connected}
		for range 2 { // the second time there is nothing to do
			if got, err := g.tree().partition(i); err != nil || got != c.want {
				t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
			}
		}
		if !slices.Equal(g.writes, c.writes) {
			t.Errorf("%s: wrote %q, want %q", name, g.writes, c.writes)
		}
	}
}

func TestAGuestSaysWhyAnInterfaceIsNotInItsPartition(t *testing.T) {
	i := guestlink.Interface{GUID: ipoibGUID, PKey: 0x112, Connected: true}
	for says, change := range map[string]func(*ipoibGuest){
		"drivers with enhanced IPoIB refuse":                            func(g *ipoibGuest) { g.enhanced = true },
		"no interface of port " + ipoibGUID + " is in partition 0x8112": func(g *ipoibGuest) { g.lazy = true },
		"the partition key of interface ib0":                            func(g *ipoibGuest) { g.put(g.dir+"/ib0", "pkey", "none") },
	} {
		g := newIPoIBGuest(t, "ib0", "0xffff")
		change(g)
		if name, err := g.tree().partition(i); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %q, %v, want an error with %q", name, err, says)
		}
	}
}

func TestAChildOfAnotherPartitionIsNoPlaceForAChild(t *testing.T) {
	seen := []ipoibNIC{{"ib0.8113", 0x8113, true}, {"ib0", 0xffff, false}}
	if use, makeOn := planPartition(seen, 0x112); use != "" || makeOn != "ib0" {
		t.Errorf("got %q, %q, want a child of ib0", use, makeOn)
	}
	if use, makeOn := planPartition(seen[:1], 0x112); use != "" || makeOn != "" {
		t.Errorf("without the port: got %q, %q", use, makeOn)
	}
}

func TestOnlyInterfacesOnInfiniBandNeedItsModule(t *testing.T) {
	if got := modulesFor([]guestlink.Interface{{MAC: "02:6e:00:01:00:02"}}); len(got) > 0 {
		t.Errorf("Ethernet needs %q", got)
	}
	if got := modulesFor([]guestlink.Interface{{}, {GUID: ipoibGUID}}); !slices.Equal(got, []string{"ib_ipoib"}) {
		t.Errorf("InfiniBand needs %q", got)
	}
}

func TestAPortWithoutIPIsNotWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		nic  guestlink.Interface
		want bool
	}{
		"Ethernet":                   {guestlink.Interface{MAC: "02:6e:00:01:00:02"}, true},
		"IP over InfiniBand":         {guestlink.Interface{GUID: ipoibGUID, PKey: 0x112}, true},
		"a partition for RDMA alone": {guestlink.Interface{GUID: ipoibGUID}, false},
	} {
		if got := carriesIP(c.nic); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
