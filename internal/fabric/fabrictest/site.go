package fabrictest

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// SiteHarness makes what RunSite works on.
type SiteHarness struct {
	// New returns a fabric without networks.
	New func(t *testing.T) SiteFabric
	// Access: a place is in one network at most.
	Access bool
}

// SiteFabric is one fabric with its switches or subnet managers. Its places are named a, b and c.
type SiteFabric interface {
	// Executor returns a new executor on the fabric, as after a restart of the server.
	Executor() site.Site
	// Settle returns when the fabric has carried out all that it has accepted.
	Settle()
	// Plant puts a network on a place past every executor.
	Plant(network int, at string)
	// Blind makes a place unreadable for a reason; "" ends that.
	Blind(at, why string)
	// Stick makes a place keep its networks whatever is desired, until it is called with false.
	Stick(at string, on bool)
}

// RunSite runs the suite that every implementation of site.Site passes, the fake one included.
func RunSite(t *testing.T, h SiteHarness) {
	t.Helper()
	shared := func(t *testing.T, f SiteFabric) {
		siteReadsBack(t, f, network(5, "a", "b"), network(5, "b"), limitedAt(9, "a", "b"))
	}
	if h.Access {
		shared = func(t *testing.T, f SiteFabric) {
			siteReadsBack(t, f, network(5, "a"), network(5), limitedAt(9, "b", "c"))
		}
	}
	for _, tt := range []struct {
		name string
		test func(t *testing.T, f SiteFabric)
	}{
		{"what was applied is read back", shared},
		{"a place that keeps a network is not clean, and is cleaned later", siteKeepsTrying},
		{"what can't be read is not clean", siteUnreadable},
		{"a desired state of a former leader, or an older one, is refused", siteFence},
		{"a new executor claims nothing before it applied", siteRestart},
		{"what somebody else put there goes", siteDebris},
		{"invalid networks are refused and change nothing", siteInvalid},
		{"a context that has ended ends every call", siteCancelled},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, h.New(t)) })
	}
}

// epoch is a revision of the first leader.
func epoch(revision int64) lifecycle.Epoch { return lifecycle.Epoch{Term: 1, Revision: revision} }

// network is one with full members at these places.
func network(number int, places ...string) site.Network {
	n := site.Network{Number: number}
	for _, at := range places {
		n.Ports = append(n.Ports, site.Port{At: at})
	}
	return n
}

// applied applies networks and waits until the fabric has carried them out, as far as it does.
func applied(t *testing.T, f SiteFabric, s site.Site, e lifecycle.Epoch, networks ...site.Network) {
	t.Helper()
	must(t, s.Apply(context.Background(), e, networks))
	f.Settle()
}

func observed(t *testing.T, s site.Site) site.Observation {
	t.Helper()
	o, err := s.Observe(context.Background())
	must(t, err)
	return o
}

// mustShow fails unless exactly these networks are read back. The order is of no importance, nor are networks without ports.
func mustShow(t *testing.T, s site.Site, want ...site.Network) {
	t.Helper()
	places := func(networks []site.Network) map[int]map[string]bool {
		byNumber := map[int]map[string]bool{}
		for _, n := range networks {
			for _, p := range n.Ports {
				if byNumber[n.Number] == nil {
					byNumber[n.Number] = map[string]bool{}
				}
				byNumber[n.Number][p.At] = p.Limited
			}
		}
		return byNumber
	}
	if diff := cmp.Diff(places(want), places(observed(t, s).Networks), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the fabric differs, places by network and whether limited (-want +got):\n%s", diff)
	}
}

// mustBeClean fails unless the network is proved to be gone from the place.
func mustBeClean(t *testing.T, s site.Site, e lifecycle.Epoch, number int, at string) {
	t.Helper()
	if err := observed(t, s).Clean(e, number, at); err != nil {
		t.Errorf("network %d at %s, without it since %v: %v", number, at, e, err)
	}
}

// mustNotBeClean fails when it is proved.
func mustNotBeClean(t *testing.T, s site.Site, e lifecycle.Epoch, number int, at string) {
	t.Helper()
	if observed(t, s).Clean(e, number, at) == nil {
		t.Errorf("network %d at %s counts as clean since %v", number, at, e)
	}
}

// limitedAt is a network with a limited member and a full one.
func limitedAt(number int, limited, full string) site.Network {
	return site.Network{Number: number, Ports: []site.Port{{At: limited, Limited: true}, {At: full}}}
}

// siteReadsBack begins with a network, takes place a from it, and makes the limited member of another one a full one.
func siteReadsBack(t *testing.T, f SiteFabric, first, less, storage site.Network) {
	s := f.Executor()
	mustShow(t, s)
	all := []site.Network{first, network(6), storage}
	for range 2 {
		applied(t, f, s, epoch(1), all...)
		mustShow(t, s, all...)
	}
	mustNotBeClean(t, s, epoch(1), 5, "a")
	applied(t, f, s, epoch(2), less, storage)
	mustShow(t, s, less, storage)
	mustBeClean(t, s, epoch(2), 5, "a")
	mustNotBeClean(t, s, epoch(2), 9, storage.Ports[0].At)
	mustNotBeClean(t, s, epoch(3), 5, "a")
	storage.Ports[0].Limited = false
	applied(t, f, s, epoch(3), storage)
	mustShow(t, s, storage)
	applied(t, f, s, epoch(4))
	mustShow(t, s)
	mustBeClean(t, s, epoch(4), 9, storage.Ports[0].At)
}

func siteKeepsTrying(t *testing.T, f SiteFabric) {
	s := f.Executor()
	applied(t, f, s, epoch(1), network(5, "a", "b"))
	f.Stick("a", true)
	applied(t, f, s, epoch(2))
	mustShow(t, s, network(5, "a"))
	mustNotBeClean(t, s, epoch(2), 5, "a")
	f.Stick("a", false)
	applied(t, f, s, epoch(2))
	mustShow(t, s)
	mustBeClean(t, s, epoch(2), 5, "a")
}

func siteUnreadable(t *testing.T, f SiteFabric) {
	s := f.Executor()
	applied(t, f, s, epoch(1), network(5, "a", "b"))
	f.Blind("a", "its switch does not answer")
	applied(t, f, s, epoch(2))
	mustNotBeClean(t, s, epoch(2), 5, "a")
	mustBeClean(t, s, epoch(2), 5, "b")
	f.Blind("a", "")
	mustBeClean(t, s, epoch(2), 5, "a")
}

func siteFence(t *testing.T, f SiteFabric) {
	former, present := f.Executor(), f.Executor()
	applied(t, f, former, lifecycle.Epoch{Term: 1, Revision: 7}, network(5, "a"))
	applied(t, f, present, lifecycle.Epoch{Term: 2, Revision: 3}, network(6, "b"))
	for _, late := range []struct {
		s site.Site
		e lifecycle.Epoch
	}{
		{former, lifecycle.Epoch{Term: 1, Revision: 8}}, {present, lifecycle.Epoch{Term: 1, Revision: 8}}, {present, lifecycle.Epoch{Term: 2, Revision: 2}},
	} {
		if err := late.s.Apply(context.Background(), late.e, []site.Network{network(5, "a")}); !errors.Is(err, site.ErrStale) {
			t.Errorf("epoch %v: got %v, want ErrStale", late.e, err)
		}
	}
	f.Settle()
	mustShow(t, present, network(6, "b"))
	applied(t, f, present, lifecycle.Epoch{Term: 2, Revision: 3}, network(6, "b"))
	mustBeClean(t, present, lifecycle.Epoch{Term: 2, Revision: 3}, 5, "a")
}

func siteRestart(t *testing.T, f SiteFabric) {
	before := f.Executor()
	applied(t, f, before, epoch(1), network(5, "a"))
	applied(t, f, before, epoch(2))
	after := f.Executor()
	mustNotBeClean(t, after, epoch(2), 5, "a")
	mustShow(t, after)
	applied(t, f, after, epoch(2))
	mustBeClean(t, after, epoch(2), 5, "a")
}

func siteDebris(t *testing.T, f SiteFabric) {
	s := f.Executor()
	applied(t, f, s, epoch(1), network(5, "a"))
	f.Plant(7, "c")
	f.Plant(5, "b")
	mustNotBeClean(t, s, epoch(1), 7, "c")
	mustNotBeClean(t, s, epoch(1), 5, "b")
	applied(t, f, s, epoch(1), network(5, "a"))
	mustShow(t, s, network(5, "a"))
}

func siteInvalid(t *testing.T, f SiteFabric) {
	s := f.Executor()
	applied(t, f, s, epoch(1), network(5, "a"))
	for what, networks := range map[string][]site.Network{
		"no number": {network(0, "a")}, "a negative number": {network(-1, "a")}, "a number twice": {network(5, "a"), network(5, "b")},
		"a place twice in a network": {network(5, "a", "a")}, "a place without a name": {network(5, "")},
	} {
		if err := s.Apply(context.Background(), epoch(2), networks); err == nil {
			t.Errorf("%s: want an error", what)
		}
	}
	f.Settle()
	mustShow(t, s, network(5, "a"))
	applied(t, f, s, epoch(1), network(5, "a")) // the epoch of what was refused was not taken note of
}

func siteCancelled(t *testing.T, f SiteFabric) {
	s := f.Executor()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, observe := s.Observe(ctx)
	for what, err := range map[string]error{"Apply": s.Apply(ctx, epoch(1), nil), "Observe": observe} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want context.Canceled", what, err)
		}
	}
}
