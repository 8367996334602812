package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// macRecord says whose a provisioning NIC is: two machines never share a MAC, also when they are made at the same moment.
type macRecord struct {
	Machine string `json:"machine"`
}

// DuplicateMACError reports that a provisioning NIC belongs to another machine.
type DuplicateMACError struct {
	MAC, Machine string
}

func (e *DuplicateMACError) Error() string {
	return fmt.Sprintf("MAC %s already belongs to machine %q", e.MAC, e.Machine)
}

// PowerConflictError reports that another power request of a machine came first.
type PowerConflictError struct {
	Machine string
	// Request is the request that came first.
	Request api.PowerRequest
}

func (e *PowerConflictError) Error() string {
	return fmt.Sprintf("another power request for machine %q came first: %s, by %s", e.Machine, e.Request.Action, e.Request.By)
}

// ErrRemoving reports that the machine is being removed.
var ErrRemoving = errors.New("being removed")

// CreateMachine stores a new machine. A name that a machine or a node has is ErrExists, a MAC of another machine *DuplicateMACError.
// Candidates with its MACs become it, in the same commit: their hardware is the machine's. The MACs must be normal (NormalMAC).
func (r *Repo) CreateMachine(ctx context.Context, in api.MachineIntent) (int64, error) {
	for {
		conds, ops, err := r.newMachine(ctx, &in)
		if err != nil {
			return 0, err
		}
		revision, err := r.store.Commit(ctx, conds, ops)
		if errors.Is(err, store.ErrConflict) {
			continue // newMachine tells what is taken
		}
		if err != nil {
			return 0, fmt.Errorf("store machine %q: %w", in.Name, err)
		}
		failpoint.Hit("state.after-machine")
		return revision, nil
	}
}

// newMachine is what one commit writes to make a machine, and on which conditions; an error tells what is taken.
func (r *Repo) newMachine(ctx context.Context, in *api.MachineIntent) ([]store.Cond, []store.Op, error) {
	for _, key := range []string{prefixMachine + in.Name, prefixNode + in.Name, prefixIdentity + in.Name} {
		_, taken, err := r.store.Get(ctx, key)
		if err != nil {
			return nil, nil, fmt.Errorf("read machine %q: %w", in.Name, err)
		}
		if taken {
			kind, _ := splitKey(key)
			return nil, nil, fmt.Errorf("%s %q %w", kind[:len(kind)-1], in.Name, ErrExists)
		}
	}
	conds := []store.Cond{{Key: prefixMachine + in.Name}, {Key: prefixNode + in.Name}, {Key: prefixIdentity + in.Name}}
	ops := []store.Op{put(prefixMachine+in.Name, in)}
	var hardware *api.Hardware
	for _, mac := range in.Spec.MACs {
		key := prefixMAC + macKey(mac)
		owner, _, err := get[macRecord](ctx, r, key, "MAC", mac)
		if err == nil {
			return nil, nil, &DuplicateMACError{MAC: mac, Machine: owner.Machine}
		}
		if !errors.Is(err, ErrNotFound) {
			return nil, nil, err
		}
		conds, ops = append(conds, store.Cond{Key: key}), append(ops, put(key, macRecord{in.Name}))

		candidate, revision, err := get[api.Candidate](ctx, r, prefixCandidate+macKey(mac), "candidate", mac)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		conds = append(conds, store.Cond{Key: prefixCandidate + macKey(mac), Revision: revision})
		ops = append(ops, store.Op{Key: prefixCandidate + macKey(mac), Delete: true}, store.Op{Key: prefixLease + macKey(mac), Delete: true})
		if hardware == nil {
			hardware = candidate.Hardware
		}
	}
	if hardware != nil {
		ops = append(ops, put(prefixHardware+in.Name, hardware))
	}
	return conds, ops, nil
}

// UpdateMachineIntent changes what is wanted of a machine by compare-and-swap, as UpdateJob does a job. A machine of another UID is
// ErrNotFound; name, UID and MACs can't be changed.
func (r *Repo) UpdateMachineIntent(ctx context.Context, name, uid string, change func(*api.MachineIntent) error) (api.MachineIntent, int64, error) {
	in, revision, _, err := update(ctx, r, prefixMachine+name, "machine", name, nil, func(in *api.MachineIntent) error {
		if in.UID != uid {
			return fmt.Errorf("machine %q %w: it was removed and enrolled again", name, ErrNotFound)
		}
		macs := slices.Clone(in.Spec.MACs)
		if err := change(in); err != nil {
			return err
		}
		if in.Name != name || in.UID != uid || !slices.Equal(in.Spec.MACs, macs) {
			return fmt.Errorf("name and MACs of machine %q can't be changed; remove the machine and enroll it again", name)
		}
		return nil
	})
	return in, revision, err
}

// RequestMachineRemoval marks a machine as to be forgotten, once; later requests keep the first one's time, and may add force.
func (r *Repo) RequestMachineRemoval(ctx context.Context, name string, force bool, at time.Time) (api.MachineIntent, int64, error) {
	in, revision, _, err := update(ctx, r, prefixMachine+name, "machine", name, nil, func(in *api.MachineIntent) error {
		if in.RemoveRequestedAt == nil {
			in.RemoveRequestedAt = &at
		}
		in.RemoveForce = in.RemoveForce || force
		return nil
	})
	return in, revision, err
}

// PowerAsk is a request about one machine's power.
type PowerAsk struct {
	Name, UID string
	// After is the number of the newest request that who asks knows of: another one meanwhile wins.
	After int64
	// Request gets the number after it.
	Request api.PowerRequest
}

// RequestPower stores power requests, up to 100 of them together or not at all. Of two at once for one machine, one wins, and the
// other is *PowerConflictError. A machine that is being removed is ErrRemoving, one that is gone ErrNotFound; requests of machines before it
// in a longer list than 100 may then be stored already.
func (r *Repo) RequestPower(ctx context.Context, asks []PowerAsk) (int64, error) {
	var revision int64
	for batch := range slices.Chunk(asks, store.MaxOps) {
		next, err := r.requestPower(ctx, batch)
		if err != nil {
			return revision, err
		}
		revision = next
	}
	return revision, nil
}

func (r *Repo) requestPower(ctx context.Context, asks []PowerAsk) (int64, error) {
	for {
		conds, ops := make([]store.Cond, len(asks)), make([]store.Op, len(asks))
		for i, ask := range asks {
			key := prefixMachine + ask.Name
			in, revision, err := get[api.MachineIntent](ctx, r, key, "machine", ask.Name)
			switch {
			case err != nil:
				return 0, err
			case in.UID != ask.UID:
				return 0, fmt.Errorf("machine %q %w: it was removed and enrolled again", ask.Name, ErrNotFound)
			case in.RemoveRequestedAt != nil:
				return 0, fmt.Errorf("machine %q is %w", ask.Name, ErrRemoving)
			case in.Request.Number != ask.After:
				return 0, &PowerConflictError{Machine: ask.Name, Request: in.Request}
			}
			in.Request = ask.Request
			in.Request.Number = ask.After + 1
			conds[i], ops[i] = store.Cond{Key: key, Revision: revision}, put(key, in)
		}
		revision, err := r.store.Commit(ctx, conds, ops)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("store power requests: %w", err)
		}
		failpoint.Hit("state.after-power-request")
		return revision, nil
	}
}

// UpsertCandidate changes what is known of a stranger by compare-and-swap, or makes it: change then gets one with nothing but its MAC.
// A MAC of a machine makes no candidate: ErrExists.
func (r *Repo) UpsertCandidate(ctx context.Context, mac string, change func(*api.Candidate)) (int64, error) {
	key, owner := prefixCandidate+macKey(mac), prefixMAC+macKey(mac)
	for {
		c, revision, err := get[api.Candidate](ctx, r, key, "candidate", mac)
		if errors.Is(err, ErrNotFound) {
			c, err = api.Candidate{MAC: mac}, nil
		}
		if err != nil {
			return 0, err
		}
		if _, known, err := r.store.Get(ctx, owner); err != nil || known {
			return 0, errors.Join(err, fmt.Errorf("a machine with MAC %s %w", mac, ErrExists))
		}
		change(&c)
		c.MAC = mac
		next, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: revision}, {Key: owner}}, []store.Op{put(key, c)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("store candidate %s: %w", mac, err)
		}
		return next, nil
	}
}

// DeleteCandidate forgets a stranger, who comes back when it boots again. One that is not there is ErrNotFound.
func (r *Repo) DeleteCandidate(ctx context.Context, mac string) (int64, error) {
	return r.remove(ctx, prefixCandidate+macKey(mac), "candidate", mac)
}

// CreateEnrollToken stores an enrollment token, of which only the hash is known here.
func (r *Repo) CreateEnrollToken(ctx context.Context, t api.EnrollmentToken) (int64, error) {
	t.Secret = ""
	return r.create(ctx, put(prefixEnrollToken+t.ID, t), fmt.Sprintf("enrollment token %q", t.ID))
}

// DeleteEnrollToken revokes an enrollment token; one that is not there is ErrNotFound.
func (r *Repo) DeleteEnrollToken(ctx context.Context, id string) (int64, error) {
	return r.remove(ctx, prefixEnrollToken+id, "enrollment token", id)
}

// create writes something new at a free key (ErrExists).
func (r *Repo) create(ctx context.Context, op store.Op, what string) (int64, error) {
	revision, err := r.store.Commit(ctx, []store.Cond{{Key: op.Key}}, []store.Op{op})
	if errors.Is(err, store.ErrConflict) {
		return 0, fmt.Errorf("%s %w", what, ErrExists)
	}
	if err != nil {
		return 0, fmt.Errorf("store %s: %w", what, err)
	}
	return revision, nil
}

// remove deletes something that must be there (ErrNotFound).
func (r *Repo) remove(ctx context.Context, key, what, name string) (int64, error) {
	for {
		e, found, err := r.store.Get(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("read %s %q: %w", what, name, err)
		}
		if !found {
			return 0, fmt.Errorf("%s %q %w", what, name, ErrNotFound)
		}
		revision, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: e.Revision}}, []store.Op{{Key: key, Delete: true}})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("remove %s %q: %w", what, name, err)
		}
		return revision, nil
	}
}

// LeaseStore keeps strangers' addresses: an implementation of netboot.Leases.
type LeaseStore struct {
	repo  *Repo
	cache *Cache
}

// LeaseStore returns the leases, as cache sees them.
func (r *Repo) LeaseStore(cache *Cache) *LeaseStore { return &LeaseStore{repo: r, cache: cache} }

// All returns the stored leases, those that have run out among them.
func (s *LeaseStore) All() []api.Lease {
	stored := s.cache.View().Leases
	all := make([]api.Lease, len(stored))
	for i, l := range stored {
		all[i] = *l
	}
	return all
}

// Keep stores a lease; it is durable when this returns.
func (s *LeaseStore) Keep(ctx context.Context, lease api.Lease) error {
	revision, err := s.repo.store.Commit(ctx, nil, []store.Op{put(prefixLease+macKey(lease.MAC), lease)})
	if err != nil {
		return fmt.Errorf("store the lease of %s: %w", lease.MAC, err)
	}
	_, err = s.cache.WaitRevision(ctx, revision)
	return err
}

// Drop forgets a lease; one that is not there is no error.
func (s *LeaseStore) Drop(ctx context.Context, mac string) error {
	revision, err := s.repo.store.Commit(ctx, nil, []store.Op{{Key: prefixLease + macKey(mac), Delete: true}})
	if err != nil {
		return fmt.Errorf("remove the lease of %s: %w", mac, err)
	}
	_, err = s.cache.WaitRevision(ctx, revision)
	return err
}
