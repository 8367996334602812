package state

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// indexRecord says whose a place in the provisioning range is: no two machines share one.
type indexRecord struct {
	Machine string `json:"machine"`
}

// ErrTokenSpent reports that an enrollment token has no use left, or has expired.
var ErrTokenSpent = errors.New("the enrollment token is used up or has expired")

// MachineWrite is the change of a machine by one commit.
type MachineWrite struct {
	// Record is the record after it. An Index that another machine has makes the commit a store.ErrConflict.
	Record api.MachineRecord
	// Hardware is the hardware that inspection found; nil: the stored hardware stays.
	Hardware *api.Hardware
}

// CommitMachine makes a decision about a machine true, guarded by the election and by what it was decided on: base, as the view has it.
// The token of the node agent of a machine that is off is void from the same commit on.
// It returns the revision of the commit.
func (l *Leader) CommitMachine(ctx context.Context, base *Machine, w MachineWrite) (int64, error) {
	rec := &w.Record
	if rec.Name != base.Name() || rec.UID != base.UID() {
		return 0, fmt.Errorf("the record of machine %q (%s) can't be written to machine %q (%s)", rec.Name, rec.UID, base.Name(), base.UID())
	}
	conds, ops := l.machineConds(base), []store.Op{put(prefixMachineRecord+rec.Name, rec)}
	if base.Record == nil || base.Record.Index != rec.Index {
		op := put(keyIndex(rec.Index), indexRecord{rec.Name})
		conds, ops = append(conds, store.Cond{Key: op.Key}), append(ops, op)
		if base.Record != nil {
			ops = append(ops, store.Op{Key: keyIndex(base.Record.Index), Delete: true})
		}
	}
	if w.Hardware != nil {
		ops = append(ops, put(prefixHardware+rec.Name, w.Hardware))
	}
	if rec.Phase == api.MachineOff {
		over, void, err := l.repo.endBoot(ctx, rec.UID, false)
		if err != nil {
			return 0, err
		}
		conds, ops = append(conds, over...), append(ops, void...)
	}
	failpoint.Hit("state.before-machine-record")
	revision, err := l.repo.store.Commit(ctx, conds, ops)
	if err != nil {
		return 0, fmt.Errorf("commit %q of machine %q: %w", rec.Phase, rec.Name, err)
	}
	failpoint.Hit("state.after-machine-record")
	return revision, nil
}

// machineConds are the conditions of a commit decided on base: still the leader, intent and record as they were seen.
func (l *Leader) machineConds(base *Machine) []store.Cond {
	return []store.Cond{
		l.leadership.Guard(),
		{Key: prefixMachine + base.Name(), Revision: base.intentRevision},
		{Key: prefixMachineRecord + base.Name(), Revision: base.recordRevision},
	}
}

func keyIndex(index int) string { return prefixMachineIndex + strconv.Itoa(index) }

// ForgetMachine removes all that is stored of a machine, and its node with what operators wanted of it, in one commit; events and usage
// stay. Whether it may go is for the caller to know.
func (l *Leader) ForgetMachine(ctx context.Context, base *Machine) (int64, error) {
	name := base.Name()
	var ops []store.Op
	for _, prefix := range []string{prefixMachine, prefixMachineRecord, prefixMachineLog, prefixHardware, prefixNode, prefixControl, prefixFaults, prefixMeasures} {
		ops = append(ops, store.Op{Key: prefix + name, Delete: true})
	}
	for _, mac := range base.Intent.Spec.MACs {
		ops = append(ops, store.Op{Key: prefixMAC + macKey(mac), Delete: true})
	}
	if base.Record != nil {
		ops = append(ops, store.Op{Key: keyIndex(base.Record.Index), Delete: true})
	}
	over, void, err := l.repo.endBoot(ctx, base.UID(), true)
	if err != nil {
		return 0, err
	}
	failpoint.Hit("state.before-forget-machine")
	revision, err := l.repo.store.Commit(ctx, append(l.machineConds(base), over...), append(ops, void...))
	if err != nil {
		return 0, fmt.Errorf("forget machine %q: %w", name, err)
	}
	return revision, nil
}

// TakeCandidate makes a machine of a stranger that carries an enrollment token, in one commit with the use of the token, which goes with
// its last use. A machine without a name gets the first free one of the token's prefix; view is only where the search for it begins. It
// returns the name. A token that is gone is ErrNotFound, one without a use left or past its end ErrTokenSpent.
func (l *Leader) TakeCandidate(ctx context.Context, view *View, tokenID string, now time.Time, in api.MachineIntent) (string, int64, error) {
	key := prefixEnrollToken + tokenID
	number, named := 0, in.Name != ""
	for {
		token, revision, err := get[api.EnrollmentToken](ctx, l.repo, key, "enrollment token", tokenID)
		switch {
		case err != nil:
			return "", 0, err
		case token.Uses < 1 || now.After(token.ExpiresAt):
			return "", 0, fmt.Errorf("%w: %q", ErrTokenSpent, tokenID)
		}
		if !named {
			in.Name, number = freeName(view, token.Prefix, number+1)
		}
		conds, ops, err := l.repo.newMachine(ctx, &in)
		if errors.Is(err, ErrExists) && !named {
			continue // the view is behind; the next number
		}
		if err != nil {
			return "", 0, err
		}
		conds = append(conds, l.leadership.Guard(), store.Cond{Key: key, Revision: revision})
		if token.Uses--; token.Uses > 0 {
			ops = append(ops, put(key, token))
		} else {
			ops = append(ops, store.Op{Key: key, Delete: true})
		}
		next, err := l.repo.store.Commit(ctx, conds, ops)
		if errors.Is(err, store.ErrConflict) {
			number = max(number-1, 0) // the name may still be free
			continue
		}
		if err != nil {
			return "", 0, fmt.Errorf("enroll machine %q: %w", in.Name, err)
		}
		failpoint.Hit("state.after-take-candidate")
		return in.Name, next, nil
	}
}

// freeName is the first name PREFIXn, n at least from, that no machine and no node of a view has.
func freeName(view *View, prefix string, from int) (string, int) {
	for n := from; ; n++ {
		name := prefix + strconv.Itoa(n)
		if view.Node(name) == nil {
			return name, n
		}
	}
}

// FinishBuild ends a build that succeeded: build, image, and what the environment's name stands for from now on become true together. A
// build that has ended meanwhile, or is gone, is store.ErrConflict. So is an image that nobody vouches for: it is not verified, and none of
// those that built it is a trusted builder now. One that is used again was vouched for before, and must still be there.
func (l *Leader) FinishBuild(ctx context.Context, build api.Build, image api.Image, environment api.EnvironmentRecord) (int64, error) {
	key := prefixBuild + build.ID
	stored, revision, err := get[api.Build](ctx, l.repo, key, "build", build.ID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return 0, err
	}
	if err != nil || stored.Phase.Ended() {
		return 0, fmt.Errorf("build %q has already ended or was deleted: %w", build.ID, store.ErrConflict)
	}
	if environment.Digest != image.Digest {
		return 0, fmt.Errorf("environment %q must name image %s, but the build made image %s", environment.Name, environment.Digest, image.Digest)
	}
	conds := []store.Cond{l.leadership.Guard(), {Key: key, Revision: revision}}
	ops := []store.Op{put(key, build), put(prefixEnvironment+environment.Name, environment)}
	if build.Project != "" { // it replaces no environment of somebody else
		conds = append(conds, store.Cond{Key: prefixEnvironment + environment.Name})
	}
	cond, op, err := l.repo.keepImage(ctx, image)
	if err != nil {
		return 0, err
	}
	vouched, err := l.vouched(ctx, &image, build.Reused && cond.Revision != 0)
	if err != nil {
		return 0, fmt.Errorf("finish build %q: %w", build.ID, err)
	}
	conds, ops = append(append(conds, cond), vouched...), append(ops, op)
	next, err := l.repo.store.Commit(ctx, conds, ops)
	if err != nil {
		return 0, fmt.Errorf("finish build %q: %w", build.ID, err)
	}
	failpoint.Hit("state.after-finish-build")
	return next, nil
}

// vouched returns what must stay so until an image that a build made is stored: without it the site would sign what nobody vouches for.
func (l *Leader) vouched(ctx context.Context, image *api.Image, stored bool) ([]store.Cond, error) {
	if stored || image.Verified() {
		return nil, nil
	}
	for i := range image.BuiltBy {
		by := &image.BuiltBy[i]
		if !by.Trusted || by.Digest != image.Digest {
			continue
		}
		key := prefixControl + by.Node
		control, revision, err := get[api.NodeControl](ctx, l.repo, key, "what operators want of node", by.Node)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if control.Builder != nil {
			return []store.Cond{{Key: key, Revision: revision}}, nil
		}
	}
	return nil, fmt.Errorf("no trusted builder built image %s, nor did two nodes: %w", image.Digest, store.ErrConflict)
}

// PruneImages removes images built before a time that no environment stands for and nothing uses, and returns how many. Their blobs are
// for the caller to remove.
func (l *Leader) PruneImages(ctx context.Context, view *View, before time.Time) (int, error) {
	removed := 0
	for _, image := range view.Images {
		if !image.BuiltAt.Before(before) || len(ImageUsers(view, "", image.Digest)) > 0 {
			continue
		}
		gone, err := l.pruneImage(ctx, image.Digest)
		if err != nil {
			return removed, err
		}
		if gone {
			removed++
		}
	}
	return removed, nil
}

// pruneImage removes an image unless a name has come to stand for it: who gives it one writes the image, too, so that this commit fails.
func (l *Leader) pruneImage(ctx context.Context, digest string) (bool, error) {
	_, revision, err := get[api.Image](ctx, l.repo, keyImage(digest), "image", digest)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if names, err := l.repo.namesOf(ctx, digest); err != nil || len(names) > 0 {
		return false, err
	}
	conds := []store.Cond{l.leadership.Guard(), {Key: keyImage(digest), Revision: revision}}
	_, err = l.repo.store.Commit(ctx, conds, []store.Op{{Key: keyImage(digest), Delete: true}})
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove image %s: %w", digest, err)
	}
	return true, nil
}

// PruneStrangers removes candidates that were last seen, and leases that ended, before a time, and returns how many. Who still boots comes
// back.
func (l *Leader) PruneStrangers(ctx context.Context, view *View, before time.Time) (int, error) {
	var ops []store.Op
	for _, c := range view.Candidates {
		if c.LastSeenAt.Before(before) && len(ops) < store.MaxOps {
			ops = append(ops, store.Op{Key: prefixCandidate + macKey(c.MAC), Delete: true})
		}
	}
	for _, lease := range view.Leases {
		if lease.ExpiresAt.Before(before) && len(ops) < store.MaxOps {
			ops = append(ops, store.Op{Key: prefixLease + macKey(lease.MAC), Delete: true})
		}
	}
	return l.prune(ctx, ops, "strangers")
}

// PruneBuilds removes builds that ended before a time, and returns how many.
func (l *Leader) PruneBuilds(ctx context.Context, view *View, before time.Time) (int, error) {
	var ops []store.Op
	for _, build := range view.Builds {
		if build.EndedAt != nil && build.EndedAt.Before(before) && build.Phase.Ended() && len(ops) < store.MaxOps {
			ops = append(ops, store.Op{Key: prefixBuild + build.ID, Delete: true})
		}
	}
	return l.prune(ctx, ops, "builds")
}

// PruneEnrollTokens removes enrollment tokens that ended before a time; they are refused anyway. It returns how many.
func (l *Leader) PruneEnrollTokens(ctx context.Context, view *View, before time.Time) (int, error) {
	var ops []store.Op
	for _, t := range view.EnrollTokens {
		if t.ExpiresAt.Before(before) && len(ops) < store.MaxOps {
			ops = append(ops, store.Op{Key: prefixEnrollToken + t.ID, Delete: true})
		}
	}
	return l.prune(ctx, ops, "enrollment tokens")
}
