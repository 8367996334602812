package linuxbridge

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

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

// control is the switch alone.
func (l *lab) control() *Switch {
	l.t.Helper()
	sw, err := New(Config{SwitchSettings: l.settings.Switches[0], Dir: l.dir, Pool: l.settings.Pool(), Namespace: &l.NS})
	if err != nil {
		l.t.Fatal(err)
	}
	return sw
}

func TestBridgesRefuseAnOlderEpoch(t *testing.T) {
	l := newLab(t)
	if err := l.control().Apply(t.Context(), lifecycle.Epoch{Term: 2, Revision: 1}, map[string]ethernet.State{"a": {VLAN: 6}}); err != nil {
		t.Fatal(err)
	}
	err := l.control().Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 9}, map[string]ethernet.State{"a": {VLAN: 5}})
	if r, readErr := l.control().Read(t.Context(), []string{"a"}); !errors.Is(err, site.ErrStale) || readErr != nil || r.Ports["a"].VLAN != 6 || r.Epoch.Term != 2 {
		t.Errorf("got %v, and %+v, %v", err, r, readErr)
	}
}

func TestALinkThatThisMachineHearsIsPutRight(t *testing.T) {
	l := newLab(t)
	l.Run("ip link set dev a up")
	if r, err := l.control().Read(t.Context(), []string{"a"}); err != nil || !strings.Contains(r.Unknown["a"], "this machine hears it") {
		t.Errorf("%+v, %v", r, err)
	}
	if err := l.control().Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, map[string]ethernet.State{"a": {}}); err != nil {
		t.Fatal(err)
	}
	if r, err := l.control().Read(t.Context(), []string{"a"}); err != nil || len(r.Unknown) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Others' links and bridges stay, whatever their names are, and this machine takes no part in the VLANs of tenants.
func TestNothingElseOfThisMachineIsTouched(t *testing.T) {
	l := newLab(t)
	l.Run("ip link add name nmvb up type bridge; ip link add name nmvb077 up type bridge; ip link add name nmvb100 up type bridge; ip link add name other up type bridge; ip link add name nmvb9x up type dummy 2>/dev/null || ip link add name nmvb9x type veth peer name y; ip link set dev c master other up")
	if err := l.control().Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, map[string]ethernet.State{"a": {VLAN: 5}, "b": {VLAN: 5}}); err != nil {
		t.Fatal(err)
	}
	links := l.Run("ip -o link show")
	for _, name := range []string{" nmvb:", " nmvb077:", " nmvb100:", " other:", " nmvb9x", " nmvb5:", "master other"} {
		if !strings.Contains(links, name) {
			t.Errorf("%q is not there:\n%s", name, links)
		}
	}
	if text := l.Run("ip address show dev nmvb5; cat /proc/sys/net/ipv4/conf/nmvb5/arp_ignore /proc/sys/net/ipv4/conf/nmvb5/rp_filter"); strings.Contains(text, "inet") || !strings.HasSuffix(text, "8\n1\n") {
		t.Errorf("this machine is in the VLAN:\n%s", text)
	}
	if err := l.control().Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 2}, map[string]ethernet.State{"a": {}, "b": {}}); err != nil {
		t.Fatal(err)
	}
	if links := l.Run("ip -o link show"); strings.Contains(links, " nmvb5:") || !strings.Contains(links, " nmvb100:") {
		t.Errorf("an unused bridge stays, or somebody else's goes:\n%s", links)
	}
}

// The server has a port in the provisioning network and one in the isolated one, on a bridge whose ports are isolated. It hears all machines, and passes
// nothing on between them.
func TestAServerInBothProvisioningNetworksJoinsThemForItselfAlone(t *testing.T) {
	l := newLab(t)
	l.Run("ip link add br-prov up type bridge; for l in xso xsi; do ip link set dev $l master br-prov up && bridge link set dev $l isolated on; done")
	frames := framesOf{l}
	if err := l.executor().Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, []site.Network{ethernettest.Network(ethernet.Isolated, "m2", "m3")}); err != nil {
		t.Fatal(err)
	}
	l.forwarding()
	for from, want := range map[string]string{"m1": "so", "m2": "si", "m3": "si"} {
		if got := strings.Join(frames.Heard(from, nil), " "); got != want {
			t.Errorf("port %s is heard at %q, want %q", from, got, want)
		}
		l.Arrives(from, "br-prov")
	}
	l.Run("bridge link set dev xso isolated off")
	if got := strings.Join(frames.Heard("m1", nil), " "); got != "m2 m3 so" {
		t.Errorf("a bridge that passes frames on does not, port m1 is heard at %q: the test shows nothing", got)
	}
}

// A tenant that knows an address of this machine, and the MAC of its network's bridge, can send packets there. The machine drops them.
func TestThisMachineDropsWhatTenantsSendIt(t *testing.T) {
	l := newLab(t)
	if err := l.control().Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, map[string]ethernet.State{"a": {VLAN: 5}}); err != nil {
		t.Fatal(err)
	}
	mac := strings.TrimSpace(l.Run("ip link set lo up; ip address add 192.0.2.1/32 dev lo; ip link set dev xa netns " + l.away.Path() + "; ip -o link show dev nmvb5 | sed 's/.*link.ether \\([^ ]*\\) .*/\\1/'"))
	here := l.NS
	l.NS = l.away
	l.Run("ip address add 192.0.2.2/24 dev xa; ip link set xa up; ip neigh replace 192.0.2.1 lladdr " + mac + " dev xa")
	l.NS = here
	dropped := func() string {
		return strings.TrimSpace(l.Run(`awk '/^TcpExt:/ { if (!n) { n = split($0, names) } else { for (i = 1; i <= n; i++) if (names[i] == "IPReversePathFilter") print $i } }' /proc/self/net/netstat`))
	}
	if before := dropped(); before != "0" {
		t.Fatalf("%q packets were dropped before any was sent", before)
	}
	l.forwarding()
	for deadline := time.Now().Add(20 * time.Second); dropped() == "0"; {
		if time.Now().After(deadline) {
			t.Fatal("nothing of what was sent was dropped")
		}
		if err := l.away.Do(func() error {
			conn, err := net.Dial("udp", "192.0.2.1:9")
			if err != nil {
				return err
			}
			_, err = conn.Write([]byte("hello"))
			return errors.Join(err, conn.Close())
		}); err != nil {
			t.Fatal(err)
		}
	}
}
