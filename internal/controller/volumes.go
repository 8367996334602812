package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/volume/plan"
)

// volumesPerPass bounds how many records of volumes are written in a pass, each by a commit; the next pass goes on.
const volumesPerPass = 50

// volumes plans all volumes and makes the plans true.
func (p *pass) volumes(ctx context.Context) error {
	if len(p.view.Volumes) == 0 {
		return nil
	}
	decisions, wakeAt := plan.Plan(situation.Volumes(p.view, p.cfg.Agents, p.now))
	p.sooner(wakeAt)
	var errs []error
	for _, d := range decisions[:min(len(decisions), volumesPerPass)] {
		err := p.volume(ctx, d)
		switch {
		case errors.Is(err, store.ErrNotLeader) || errors.Is(err, errDoubt):
			return err
		case err != nil && !errors.Is(err, store.ErrConflict): // it changed meanwhile, and is planned again in the next pass
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// volume makes the decision about one volume true.
func (p *pass) volume(ctx context.Context, d plan.Decision) error {
	v := p.view.Volume(d.UID)
	change, err := decision.ApplyVolume(&v.Intent, v.Record, d.Operations, p.now)
	if err != nil {
		return fmt.Errorf("volume %q: %w", v.Name(), err)
	}
	write := func() (int64, error) { return p.writer.CommitVolume(ctx, v, change.Record, change.Usage) }
	if change.Forget {
		write = func() (int64, error) { return p.writer.ForgetVolume(ctx, v, change.Usage) }
	}
	revision, err := write()
	switch {
	case err == nil:
		p.committed = max(p.committed, revision)
		p.log.InfoContext(ctx, "decided about a volume", "volume", v.Name(), "uid", d.UID, "node", change.Record.Node, "size_bytes", change.Record.SizeBytes,
			"purging", change.Record.Purging, "forgotten", change.Forget)
	case errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotLeader) || !takesRoom(v, change):
	default:
		err = fmt.Errorf("%w: %w", errDoubt, err) // it may be true already, or become so: that room must not be given away again
	}
	return err
}

// takesRoom reports whether a change of a volume takes room on a node.
func takesRoom(v *state.Volume, change decision.VolumeChange) bool {
	return !change.Forget && (v.Record == nil || change.Record.SizeBytes > v.Record.SizeBytes)
}

// updateVolumes tells nodes of the volumes that lie on them.
func (d *desiredStates) updateVolumes(view *state.View, dirty map[string]bool) {
	seen := [2]any{identity(view.Volumes), identity(view.Clusters)}
	if seen == d.volumesSeen {
		return
	}
	d.volumesSeen = seen
	// The revision of what is stored of a volume is newer with each change of intent and record, whoever leads.
	told := plan.Told(situation.StoredVolumes(view), func(uid string) int64 { return view.Volume(uid).Revision })
	attached := attachments(view, d.claimants.of(view))
	for node, all := range told {
		for i := range all {
			all[i].Attachments = attached[all[i].UID]
		}
		if !reflect.DeepEqual(all, d.volumes[node]) {
			dirty[node] = true
		}
	}
	for node := range d.volumes {
		if told[node] == nil {
			dirty[node] = true
		}
	}
	d.volumes = told
}
