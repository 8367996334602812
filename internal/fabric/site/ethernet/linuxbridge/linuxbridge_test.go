package linuxbridge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/ethernettest"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/netns"
)

const settingsText = `
backend: linuxbridge
vlans: 2-99
provisioning_vlan: 300
switches:
- name: sw
  bridge: nmvb
  ports: [a, b, c]
  provisioning_ports: [m1, m2, m3]
  isolated_vlan: 301
`

// lab is bridges in a network namespace of their own.
type lab struct {
	*ethernettest.Wires
	t        *testing.T
	settings ethernet.Settings
	dir      string
	// away is where links go that can't be found.
	away  netns.Handle
	stuck map[string]string
}

// newLab makes ports, and two of the server's, so and si, which are in the provisioning network and in the isolated one.
func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{Wires: ethernettest.NewWires(t, "a", "b", "c", "m1", "m2", "m3", "so", "si"), t: t, dir: ethernettest.TempDir(t), stuck: map[string]string{}}
	var err error
	if l.settings, err = ethernet.Parse([]byte(settingsText), l.dir); err != nil {
		t.Fatal(err)
	}
	if l.away, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.away.Close() })
	l.Run("ip link add name nmvb300 up type bridge; ip link add name nmvb301 up type bridge; ip link set dev so master nmvb300 up; ip link set dev si master nmvb301 up")
	return l
}

func (l *lab) executor() *ethernet.Site {
	l.t.Helper()
	sw, err := New(Config{SwitchSettings: l.settings.Switches[0], Dir: l.dir, Pool: l.settings.Pool(), Namespace: &l.NS})
	if err != nil {
		l.t.Fatal(err)
	}
	s, err := ethernet.New(l.settings, map[string]ethernet.Switch{"sw": sw})
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

// fabricOf is a lab as the suite wants it.
type fabricOf struct{ *lab }

func (f fabricOf) Executor() site.Site { return ethernettest.Named{Site: f.executor(), Switch: "sw"} }

// Settle has nothing to wait for. Somebody puts links back meanwhile.
func (f fabricOf) Settle() {
	for port, bridge := range f.stuck {
		f.Run(fmt.Sprintf("ip link show %s >/dev/null 2>&1 || ip link add name %s up type bridge; ip link set dev %s master %s up", bridge, bridge, port, bridge))
	}
}

func (f fabricOf) Plant(network int, at string) {
	f.Run(fmt.Sprintf("ip link show nmvb%d >/dev/null 2>&1 || ip link add name nmvb%d up type bridge; ip link set dev %s master nmvb%d up", network, network, at, network))
}

func (f fabricOf) Blind(at, why string) {
	if why != "" {
		f.Run(fmt.Sprintf("ip link set dev %s netns %s", at, f.away.Path()))
		return
	}
	here := f.NS
	f.NS = f.away
	f.Run(fmt.Sprintf("ip link set dev %s netns %s", at, here.Path()))
	f.NS = here
}

func (f fabricOf) Stick(at string, on bool) {
	delete(f.stuck, at)
	if on {
		f.stuck[at] = strings.TrimSpace(f.Run("ip -o link show dev " + at + " | sed 's/.*master \\([^ ]*\\) .*/\\1/'"))
	}
}

func TestSiteConformance(t *testing.T) {
	fabrictest.RunSite(t, fabrictest.SiteHarness{
		New: func(t *testing.T) fabrictest.SiteFabric { return fabricOf{newLab(t)} }, Access: true,
	})
}

func networkOf(number int, ports ...string) site.Network {
	n := site.Network{Number: number}
	for _, p := range ports {
		n.Ports = append(n.Ports, site.Port{At: ethernet.Place("sw", p), Limited: number == ethernet.Isolated})
	}
	return n
}

func (l *lab) apply(revision int64, networks ...site.Network) *ethernet.Site {
	l.t.Helper()
	s := l.executor()
	if err := s.Apply(context.Background(), lifecycle.Epoch{Term: 1, Revision: revision}, networks); err != nil {
		l.t.Fatal(err)
	}
	l.forwarding()
	return s
}

// forwarding waits until the kernel has noticed that the links are connected.
func (l *lab) forwarding() {
	l.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); strings.Contains(l.Run("bridge link show"), "state disabled"); {
		if time.Now().After(deadline) {
			l.t.Fatal("a port does not forward")
		}
		l.Run("sleep 0.01")
	}
}

func (l *lab) mustHear(from string, want ...string) {
	l.t.Helper()
	if got := l.Heard(from, func() {}); !slices.Equal(got, want) {
		l.t.Errorf("who hears port %s (-want +got):\n%s", from, cmp.Diff(want, got))
	}
}

func TestFramesStayInTheirNetwork(t *testing.T) {
	l := newLab(t)
	l.apply(1, networkOf(5, "a", "b"))
	l.mustHear("a", "b")
	l.mustHear("b", "a")
	l.apply(2, networkOf(5, "a"), networkOf(6, "b", "c"))
	l.mustHear("a")
	l.mustHear("b", "c")
}
