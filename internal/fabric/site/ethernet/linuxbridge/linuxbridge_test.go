package linuxbridge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/ethernettest"
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

// framesOf is a lab as the suite of frames wants it.
type framesOf struct{ *lab }

func (f framesOf) Executor() *ethernet.Site { return f.executor() }

func (f framesOf) Meddle(port string) {
	f.Run("ip link show stray >/dev/null 2>&1 || ip link add name stray up type bridge; ip link set dev " + port + " master stray up")
}

func (f framesOf) Ready() { f.forwarding() }

func (f framesOf) Heard(from string, tag []byte) []string {
	return f.HeardFrame(from, tag, func() {})
}

func TestFrames(t *testing.T) {
	ethernettest.Run(t, func(t *testing.T) ethernettest.Lab { return framesOf{newLab(t)} })
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
