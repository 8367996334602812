package state_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// floatingAddress is a floating address of a project.
func floatingAddress(project, address string) api.FloatingAddress {
	return api.FloatingAddress{Address: netip.MustParseAddr(address), Project: project, AllocatedAt: now}
}

// atMost is a check of an allocation: a project has this many addresses at most.
func atMost(n int) func([]api.FloatingAddress) error {
	return func(held []api.FloatingAddress) error {
		if len(held) >= n {
			return errQuota
		}
		return nil
	}
}

var errQuota = errors.New("quota")

func TestAnAddressBelongsToOneProjectUntilItIsReleased(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateProject(ctx, api.Project{Name: "physics", CreatedAt: now}))
		w.reach(w.repo.AllocateAddress(ctx, floatingAddress("physics", "192.0.2.1"), atMost(2)))
		if _, err := w.repo.AllocateAddress(ctx, floatingAddress("default", "192.0.2.1"), atMost(2)); !errors.Is(err, state.ErrExists) {
			t.Errorf("an address of another project is allocated: %v", err)
		}
		if _, err := w.repo.AllocateAddress(ctx, floatingAddress("nobody", "192.0.2.2"), atMost(2)); !errors.Is(err, state.ErrNoProject) {
			t.Errorf("an address is allocated to a project that does not exist: %v", err)
		}
		if _, err := w.repo.DeleteProject(ctx, "physics"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "192.0.2.1") {
			t.Errorf("a project with an address is deleted: %v", err)
		}
		address := netip.MustParseAddr("192.0.2.1")
		refused := errors.New("refused")
		if _, err := w.repo.ReleaseAddress(ctx, address, func(*api.FloatingAddress) error { return refused }); !errors.Is(err, refused) || w.cache.View().Address(address) == nil {
			t.Errorf("an address is released against its check: %v", err)
		}
		w.reach(w.repo.ReleaseAddress(ctx, address, func(*api.FloatingAddress) error { return nil }))
		if _, err := w.repo.ReleaseAddress(ctx, address, func(*api.FloatingAddress) error { return nil }); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("an address is released twice: %v", err)
		}
		w.reach(w.repo.AllocateAddress(ctx, floatingAddress("default", "192.0.2.1"), atMost(2)))
		w.reach(w.repo.DeleteProject(ctx, "physics"))
	})
}

func TestTwoAllocationsAtOnceDoNotPassTheQuota(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.meanwhile(func() error {
			_, err := w.repo.AllocateAddress(ctx, floatingAddress("default", "192.0.2.2"), atMost(1))
			return err
		})
		if _, err := w.repo.AllocateAddress(ctx, floatingAddress("default", "192.0.2.1"), atMost(1)); !errors.Is(err, errQuota) {
			t.Errorf("a second address at the same moment passes the quota of one: %v", err)
		}
	})
}

// leadTo points an address to a member unless another address of the project does so.
func leadTo(member string) func(*api.FloatingAddress, []api.FloatingAddress) error {
	return func(a *api.FloatingAddress, others []api.FloatingAddress) error {
		for i := range others {
			if others[i].Target != nil && others[i].Target.Member == member {
				return errQuota
			}
		}
		a.Target = &api.AddressTarget{Cluster: "c1", ClusterUID: "uid-c1", Member: member, AssignedAt: now}
		return nil
	}
}

func TestTwoAddressesAreNotAssignedToOneMemberAtTheSameMoment(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		one, two := floatingAddress("default", "192.0.2.1"), floatingAddress("default", "192.0.2.2")
		w.reach(w.repo.AllocateAddress(ctx, one, atMost(2)))
		w.reach(w.repo.AllocateAddress(ctx, two, atMost(2)))
		w.meanwhile(func() error {
			_, _, err := w.repo.ChangeAddress(ctx, two.Address, leadTo("c1-0"))
			return err
		})
		if _, _, err := w.repo.ChangeAddress(ctx, one.Address, leadTo("c1-0")); !errors.Is(err, errQuota) {
			t.Errorf("two addresses lead to one member: %v", err)
		}
		a, revision, err := w.repo.ChangeAddress(ctx, one.Address, leadTo("c1-1"))
		if err != nil || a.Target.Member != "c1-1" {
			t.Fatalf("got %+v, %v", a, err)
		}
		if _, again, err := w.repo.ChangeAddress(ctx, one.Address, leadTo("c1-1")); err != nil || again != revision {
			t.Errorf("a change that changes nothing is written: revision %d after %d, %v", again, revision, err)
		}
		if _, _, err := w.repo.ChangeAddress(ctx, netip.MustParseAddr("192.0.2.9"), leadTo("c1-2")); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("an address that nobody has is assigned: %v", err)
		}
	})
}

// reachChange waits until the cache has a change of an address.
func (w *world) reachChange(_ api.FloatingAddress, revision int64, err error) {
	w.Helper()
	w.reach(revision, err)
}
