package fake

import (
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// fabricTables are Tables as the suite wants them.
type fabricTables struct{ *Tables }

func (t fabricTables) Executor() site.Site { return NewSite(t.Tables) }

func TestSiteConformance(t *testing.T) {
	fabrictest.RunSite(t, fabrictest.SiteHarness{
		New: func(*testing.T) fabrictest.SiteFabric { return fabricTables{&Tables{}} },
	})
}

func TestAPortIsNotCleanWhileTheFabricIsAtWork(t *testing.T) {
	tables := &Tables{}
	s := NewSite(tables)
	with, without := lifecycle.Epoch{Term: 1, Revision: 1}, lifecycle.Epoch{Term: 1, Revision: 2}
	tables.Delay()
	// The port is on its way when it is dropped: absent at first, then present, then gone.
	if err := s.Apply(t.Context(), with, []site.Network{{Number: 5, Ports: []site.Port{{At: "a"}}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), without, nil); err != nil {
		t.Fatal(err)
	}
	seen, err := s.Observe(t.Context())
	if err != nil || len(seen.Networks) > 0 || seen.Clean(without, 5, "a") == nil {
		t.Errorf("before anything came into force: %+v, %v; want that nothing is there and nothing is clean", seen, err)
	}
	tables.Settle()
	if seen, err = s.Observe(t.Context()); err != nil || seen.Clean(without, 5, "a") != nil {
		t.Errorf("when all is in force: %+v, %v; want that it is clean", seen, err)
	}
}

func TestASiteFailsAsTold(t *testing.T) {
	s, broken := NewSite(&Tables{}), errors.New("broken")
	s.Fail("Apply", broken)
	s.Fail("Observe", broken)
	_, err := s.Observe(t.Context())
	if apply := s.Apply(t.Context(), lifecycle.Epoch{Term: 1}, nil); !errors.Is(err, broken) || !errors.Is(apply, broken) {
		t.Errorf("got %v and %v", apply, err)
	}
}
