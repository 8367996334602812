package ethernettest

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Lab is a switch with the ports of SettingsText, and with two of the server's: so is in OpenVLAN and si in IsolatedVLAN.
type Lab interface {
	// Executor returns a new executor on the switch.
	Executor() *ethernet.Site
	// Ready returns when the switch forwards as it was told last.
	Ready()
	// Heard sends a frame into a port and returns where it came out, in order of names.
	Heard(from string, tag []byte) []string
	// Meddle makes a port carry all VLANs, or as much as somebody could who knows nothing of Nearmetal.
	Meddle(port string)
}

// Run runs what every backend has to pass besides fabrictest.RunSite: where frames go.
func Run(t *testing.T, newLab func(t *testing.T) Lab) {
	t.Helper()
	for name, test := range map[string]func(s *suite){
		"frames stay in their network":                          (*suite).networks,
		"a machine that a tenant has reaches the server alone":  (*suite).provisioning,
		"what somebody else did to a port is put right":         (*suite).drift,
		"a switch refuses what an older leader still sends":     (*suite).fence,
		"a port that the switch lacks keeps no other from work": (*suite).unmanaged,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&suite{t, newLab(t), 0})
		})
	}
}

type suite struct {
	t        *testing.T
	lab      Lab
	revision int64
}

// Network is one with these ports of the switch sw, which are limited if it is the isolated one.
func Network(number int, ports ...string) site.Network {
	n := site.Network{Number: number}
	for _, p := range ports {
		n.Ports = append(n.Ports, site.Port{At: ethernet.Place("sw", p), Limited: number == ethernet.Isolated})
	}
	return n
}

// apply applies networks by a new executor.
func (s *suite) apply(networks ...site.Network) *ethernet.Site {
	s.t.Helper()
	s.revision++
	e := s.lab.Executor()
	if err := e.Apply(s.t.Context(), lifecycle.Epoch{Term: 1, Revision: s.revision}, networks); err != nil {
		s.t.Fatal(err)
	}
	s.lab.Ready()
	return e
}

// mustHear wants that frames from each port come out at exactly these others.
func (s *suite) mustHear(want map[string]string) {
	s.t.Helper()
	for _, from := range slices.Sorted(maps.Keys(want)) {
		if got := strings.Join(s.lab.Heard(from, nil), " "); got != want[from] {
			s.t.Errorf("port %s is heard at %q, want %q", from, got, want[from])
		}
	}
}

// nobody is a port map in which data ports hear nobody, and provisioning ports are open.
func nobody() map[string]string {
	return map[string]string{"a": "", "b": "", "c": "", "m1": "m2 m3 so", "m2": "m1 m3 so", "m3": "m1 m2 so", "so": "m1 m2 m3", "si": ""}
}

func (s *suite) networks() {
	with := func(pairs ...string) map[string]string {
		all := nobody()
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		return all
	}
	s.apply(Network(5, "a", "b"))
	s.mustHear(with("a", "b", "b", "a"))
	s.apply(Network(5, "a"), Network(6, "b", "c"))
	s.mustHear(with("b", "c", "c", "b"))
	// A machine that puts tags on its frames gets nowhere: not into its own network by that, nor into others.
	own := map[string]string{"a": "", "m1": "m2 m3 so"}
	for _, vlan := range []int{5, 6, OpenVLAN, IsolatedVLAN, 4095} {
		for from, in := range own {
			for _, got := range s.lab.Heard(from, tag(vlan)) {
				if !slices.Contains(strings.Fields(in), got) {
					s.t.Errorf("a frame of port %s with tag %d reaches %s", from, vlan, got)
				}
			}
		}
	}
	s.apply()
	s.mustHear(nobody())
	for _, vlan := range []int{5, OpenVLAN, 4095} {
		if got := s.lab.Heard("a", tag(vlan)); len(got) > 0 {
			s.t.Errorf("a frame with tag %d of a port without a network reaches %v", vlan, got)
		}
	}
}

// tag is an IEEE 802.1Q tag.
func tag(vlan int) []byte { return []byte{0x81, 0, byte(vlan >> 8), byte(vlan)} }

func (s *suite) provisioning() {
	s.apply()
	s.mustHear(nobody())
	e := s.apply(Network(ethernet.Isolated, "m2"))
	s.mustHear(map[string]string{"m1": "m3 so", "m2": "si", "m3": "m1 so", "so": "m1 m3", "si": "m2"})
	seen, err := e.Observe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if diff := gocmp.Diff([]site.Network{Network(ethernet.Isolated, "m2")}, seen.Networks); diff != "" {
		s.t.Errorf("what is read back (-want +got):\n%s", diff)
	}
	s.apply(Network(ethernet.Isolated, "m2", "m3"))
	s.mustHear(map[string]string{"m1": "so", "m2": "si", "m3": "si", "so": "m1", "si": "m2 m3"})
	s.apply()
	s.mustHear(nobody())
}

func (s *suite) drift() {
	all := []site.Network{Network(5, "a", "b"), Network(ethernet.Isolated, "m2")}
	s.apply(all...)
	for _, port := range []string{"a", "c", "m1", "m2"} {
		s.lab.Meddle(port)
	}
	seen, err := s.lab.Executor().Observe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, port := range []string{"a", "c", "m1", "m2"} {
		at := ethernet.Place("sw", port)
		if _, unknown := seen.Unknown[at]; !unknown && !slices.ContainsFunc(seen.Networks, func(n site.Network) bool {
			return n.Number != 5 && slices.ContainsFunc(n.Ports, func(p site.Port) bool { return p.At == at })
		}) {
			s.t.Errorf("port %s reads as it is to be: %+v", port, seen)
		}
	}
	s.apply(all...)
	s.mustHear(map[string]string{"a": "b", "b": "a", "c": "", "m1": "m3 so", "m2": "si"})
}

// fence lets an older leader's executor go on that has read the switch before the newer one's has told it anything.
func (s *suite) fence() {
	old, young := s.lab.Executor(), s.lab.Executor()
	apply := func(e *ethernet.Site, term int64, networks ...site.Network) error {
		return e.Apply(s.t.Context(), lifecycle.Epoch{Term: term, Revision: 1}, networks)
	}
	if err := cmp.Or(apply(old, 1, Network(5, "a", "b")), apply(young, 2, Network(6, "a", "b"))); err != nil {
		s.t.Fatal(err)
	}
	if err := apply(old, 1, Network(5, "a", "c")); !errors.Is(err, site.ErrStale) {
		s.t.Errorf("got %v, want ErrStale", err)
	}
	s.lab.Ready()
	s.mustHear(map[string]string{"a": "b", "c": ""})
}

// unmanaged desires a port that the settings don't name, and refuses it beforehand.
func (s *suite) unmanaged() {
	strange := Network(6, "zz")
	e := s.apply(Network(5, "a", "b"), strange)
	s.mustHear(map[string]string{"a": "b"})
	if err := e.Check([]site.Network{strange}); err == nil || !strings.Contains(err.Error(), "port sw/zz is none of the ports in the fabric's settings") {
		s.t.Errorf("got %v", err)
	}
	seen, err := e.Observe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if err := seen.Clean(lifecycle.Epoch{Term: 1, Revision: s.revision}, 6, "sw/zz"); err == nil {
		s.t.Error("a port that nobody reads counts as clean")
	}
}
