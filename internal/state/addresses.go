package state

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// addressUse is written by every commit that allocates or assigns an address of a project, and depends on its revision. So what was looked at to
// decide, the other addresses of the project, is still as it was.
type addressUse struct {
	Newest netip.Addr `json:"newest"`
}

// AllocateAddress stores an address of a project. check sees the addresses that the project has, and may refuse. An address that some project has
// is ErrExists, and a project that does not exist ErrNoProject.
func (r *Repo) AllocateAddress(ctx context.Context, a api.FloatingAddress, check func(held []api.FloatingAddress) error) (int64, error) {
	revision, err := r.createIn(ctx, a.Project, put(prefixAddress+a.Address.String(), a), fmt.Sprintf("address %s", a.Address), func() ([]store.Cond, []store.Op, error) {
		conds, ops, held, err := r.addressesFor(ctx, &a)
		if err != nil {
			return nil, nil, err
		}
		return conds, ops, check(held)
	})
	if err != nil {
		return 0, err
	}
	failpoint.Hit("state.after-address")
	return revision, nil
}

// ChangeAddress changes where an address leads, by compare-and-swap: change may be called several times. It sees the other addresses of the project.
// An error of change ends it and is returned as it is. An address that stays as it is writes nothing.
func (r *Repo) ChangeAddress(ctx context.Context, address netip.Addr, change func(a *api.FloatingAddress, others []api.FloatingAddress) error) (api.FloatingAddress, int64, error) {
	var none api.FloatingAddress
	key := prefixAddress + address.String()
	for {
		a, revision, err := get[api.FloatingAddress](ctx, r, key, "address", address.String())
		if err != nil {
			return none, 0, err
		}
		before := put(key, a)
		conds, ops, others, err := r.addressesFor(ctx, &a)
		if err != nil {
			return none, 0, err
		}
		if err := change(&a, others); err != nil {
			return none, 0, err
		}
		op := put(key, a)
		if string(op.Value) == string(before.Value) {
			return a, revision, nil
		}
		next, err := r.store.Commit(ctx, append(conds, store.Cond{Key: key, Revision: revision}), append(ops, op))
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return none, 0, fmt.Errorf("change address %s: %w", address, err)
		}
		failpoint.Hit("state.after-address-change")
		return a, next, nil
	}
}

// ReleaseAddress removes an address of a project. check may refuse.
func (r *Repo) ReleaseAddress(ctx context.Context, address netip.Addr, check func(*api.FloatingAddress) error) (int64, error) {
	key := prefixAddress + address.String()
	for {
		a, revision, err := get[api.FloatingAddress](ctx, r, key, "address", address.String())
		if err != nil {
			return 0, err
		}
		if err := check(&a); err != nil {
			return 0, err
		}
		next, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: revision}}, []store.Op{{Key: key, Delete: true}})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("release address %s: %w", address, err)
		}
		failpoint.Hit("state.after-address-release")
		return next, nil
	}
}

// addressesFor returns the other addresses of an address's project, with the condition that the project has no more by then, and the mark that it has.
func (r *Repo) addressesFor(ctx context.Context, a *api.FloatingAddress) ([]store.Cond, []store.Op, []api.FloatingAddress, error) {
	key := prefixAddressUse + projectOr(a.Project)
	use, _, err := r.store.Get(ctx, key)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read the use of addresses by project %q: %w", a.Project, err)
	}
	all, err := list[api.FloatingAddress](ctx, r, prefixAddress)
	if err != nil {
		return nil, nil, nil, err
	}
	var others []api.FloatingAddress
	for i := range all {
		if projectOr(all[i].Project) == projectOr(a.Project) && all[i].Address != a.Address {
			others = append(others, all[i])
		}
	}
	return []store.Cond{{Key: key, Revision: use.Revision}}, []store.Op{put(key, addressUse{Newest: a.Address})}, others, nil
}

// withoutAddresses returns ErrInUse with the addresses of a project.
func (r *Repo) withoutAddresses(ctx context.Context, project string) error {
	all, err := list[api.FloatingAddress](ctx, r, prefixAddress)
	if err != nil {
		return err
	}
	var names []string
	for i := range all {
		if all[i].Project == project {
			names = append(names, all[i].Address.String())
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("project %q is %w by %s; release %s first", project, ErrInUse, several(names, "floating address"), them(names))
	}
	return nil
}
