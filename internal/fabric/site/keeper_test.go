package site_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// kept is a fabric with its keeper, in the hands of leader after leader.
type kept struct {
	t        *testing.T
	tables   *fake.Tables
	executor *fake.Site
	keeper   *site.Keeper
	end      func()
}

// keep runs test with a fabric whose keeper works for the first leader, on a clock of its own.
func keep(t *testing.T, test func(k *kept)) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{t: t, tables: &fake.Tables{}}
		k.executor = fake.NewSite(k.tables)
		k.keeper = site.NewKeeper(k.executor, slog.New(slog.DiscardHandler))
		k.run()
		test(k)
		k.end()
	})
}

func (k *kept) run() {
	ctx, cancel := context.WithCancel(k.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.keeper.Run(ctx) }()
	k.end = func() { cancel(); <-done }
}

// set gives the keeper one network, 5, on these places, and lets it work for a while.
func (k *kept) set(term, revision int64, places ...string) {
	var networks []site.Network
	if len(places) > 0 {
		n := site.Network{Number: 5}
		for _, at := range places {
			n.Ports = append(n.Ports, site.Port{At: at})
		}
		networks = append(networks, n)
	}
	k.keeper.Set(lifecycle.Epoch{Term: term, Revision: revision}, networks)
	k.settle()
}

func (k *kept) settle() {
	ctx, cancel := context.WithTimeout(k.t.Context(), 2*time.Minute)
	defer cancel()
	<-ctx.Done()
	synctest.Wait()
}

// unclean wants network 5 on place a not to be proved gone, for a reason.
func (k *kept) unclean(why string) {
	k.t.Helper()
	if err := k.keeper.Clean(5, "a"); err == nil || !strings.Contains(err.Error(), why) {
		k.t.Errorf("port a of network 5: %v, want %q", err, why)
	}
}

func (k *kept) clean() {
	k.t.Helper()
	if err := k.keeper.Clean(5, "a"); err != nil {
		k.t.Errorf("port a of network 5 is not clean: %v", err)
	}
}

func (k *kept) attached(want site.Attached, why string) {
	k.t.Helper()
	if got, text := k.keeper.Attached(5, "a"); got != want || !strings.Contains(text, why) {
		k.t.Errorf("port a of network 5 is attached: %d, %q; want %d, %q", got, text, want, why)
	}
}

func TestAKeeperPutsPortsIntoNetworksAndTakesThemOut(t *testing.T) {
	keep(t, func(k *kept) {
		k.unclean("nobody has yet been asked")
		k.attached(site.Unread, "has not been read yet")
		k.set(1, 1, "a", "b")
		k.attached(site.Present, "")
		k.unclean("is to be in network 5")
		k.set(1, 2, "b")
		k.clean()
		k.attached(site.Absent, "is not in its network yet")
	})
}

func TestAnOrderThatIsOnItsWayProvesNothing(t *testing.T) {
	keep(t, func(k *kept) {
		k.set(1, 1, "b")
		k.tables.Delay()
		k.set(1, 2, "a", "b") // it is on its way, and absent
		k.set(1, 3, "b")
		k.unclean("not yet carried out")
		k.tables.Settle()
		k.settle()
		k.clean()
	})
}

func TestANewLeaderTakesNoWordOfAFormerOne(t *testing.T) {
	keep(t, func(k *kept) {
		k.set(1, 1, "a")
		k.set(1, 2)
		k.clean()
		k.end()
		k.keeper.Set(lifecycle.Epoch{Term: 2, Revision: 3}, nil)
		k.unclean("not yet carried out")
		k.attached(site.Unread, "has not been read yet")
		k.run()
		k.settle()
		k.clean()
	})
}

func TestADeposedLeadersKeeperChangesNothing(t *testing.T) {
	keep(t, func(k *kept) {
		k.set(1, 1, "a")
		next := site.NewKeeper(fake.NewSite(k.tables), slog.New(slog.DiscardHandler))
		next.Set(lifecycle.Epoch{Term: 2, Revision: 2}, nil)
		ctx, cancel := context.WithCancel(k.t.Context())
		done := make(chan struct{})
		go func() { defer close(done); next.Run(ctx) }()
		k.settle()
		cancel()
		<-done
		if err := next.Clean(5, "a"); err != nil {
			t.Errorf("the next leader's word: %v", err)
		}
		k.set(1, 3, "a", "b")
		if seen, err := k.executor.Observe(k.t.Context()); err != nil || len(seen.Networks) > 0 {
			t.Errorf("the fabric has %v, %v", seen.Networks, err)
		}
	})
}

func TestWhatOthersChangeOnAFabricIsMended(t *testing.T) {
	keep(t, func(k *kept) {
		k.set(1, 1, "b")
		k.tables.Plant(5, "a")
		k.settle()
		if seen, err := k.executor.Observe(k.t.Context()); err != nil || seen.Clean(lifecycle.Epoch{Term: 1}, 5, "a") != nil {
			t.Errorf("the fabric has %v, %v", seen.Networks, err)
		}
	})
}

func TestAFabricThatCanNotBeToldOrReadIsTriedAgain(t *testing.T) {
	for _, method := range []string{"Apply", "Observe"} {
		t.Run(method, func(t *testing.T) {
			keep(t, func(k *kept) {
				k.set(1, 1, "a")
				k.executor.Fail(method, errors.New("the subnet manager is away"))
				k.set(1, 2)
				k.unclean("the subnet manager is away")
				k.executor.Fail(method, nil)
				k.settle()
				k.clean()
			})
		})
	}
}

func TestAPlaceThatCanNotBeReadIsNeitherCleanNorAbsent(t *testing.T) {
	keep(t, func(k *kept) {
		k.set(1, 1, "a")
		k.tables.Blind("a", "the switch is off")
		k.settle()
		k.attached(site.Unread, "the switch is off")
		k.set(1, 2)
		k.unclean("the switch is off")
		k.tables.Blind("a", "")
		k.settle()
		k.clean()
	})
}

func TestAPortThatIsWantedAgainIsNotProvedByItsFormerLeaving(t *testing.T) {
	keep(t, func(k *kept) {
		k.set(1, 1, "a")
		k.set(1, 2)
		k.set(1, 3, "a")
		k.tables.Stick("a", true)
		k.set(1, 4)
		k.unclean("not yet carried out")
		k.tables.Stick("a", false)
		k.settle()
		k.clean()
	})
}

func TestNewsOfAFabricIsSignalledOnce(t *testing.T) {
	keep(t, func(k *kept) {
		k.set(1, 1, "a")
		<-k.keeper.Changed()
		k.settle()
		select {
		case <-k.keeper.Changed():
			t.Error("the same again is news")
		default:
		}
		k.keeper.Set(lifecycle.Epoch{Term: 1, Revision: 9}, []site.Network{{Number: 5, Ports: []site.Port{{At: "a"}}}})
		k.settle()
		if seen, _ := k.executor.Observe(k.t.Context()); seen.Epoch.Revision != 1 {
			t.Errorf("the same networks were given to the fabric again, as of revision %d", seen.Epoch.Revision)
		}
	})
}

func TestAFabricThatTakesNoChangesForLongIsAnAlarm(t *testing.T) {
	keep(t, func(k *kept) {
		kinds := func() string {
			var all []string
			for _, a := range k.keeper.Alarms().Present {
				all = append(all, a.Key())
			}
			return strings.Join(all, ", ")
		}
		k.tables.Alarm(site.Alarm{Kind: site.ManagerMissing, Subject: "0x9"})
		k.executor.Fail("Apply", errors.New("no OpenSM on this machine reads it"))
		k.keeper.Set(lifecycle.Epoch{Term: 1, Revision: 1}, nil)
		synctest.Wait()
		if got := kinds(); got != "manager_missing 0x9" || k.keeper.Alarms().Over("manager_priority 0x8") {
			t.Errorf("at once: %q", got)
		}
		k.settle()
		if got := kinds(); got != "manager_missing 0x9, not_carried_out" {
			t.Errorf("after a while: %q", got)
		}
		k.executor.Fail("Apply", nil)
		k.settle()
		if got := k.keeper.Alarms(); !got.Over("not_carried_out") || got.Over("manager_missing 0x9") || !got.Over("manager_priority 0x8") || got.Over("link_errors link between a and b") {
			t.Errorf("in the end: %+v; nobody counted errors of links", got)
		}
		k.keeper.Set(lifecycle.Epoch{Term: 2, Revision: 1}, nil)
		if got := k.keeper.Alarms(); len(got.Present) > 0 || got.Over("manager_priority 0x8") {
			t.Errorf("before the next leader has read: %+v", got)
		}
	})
}
