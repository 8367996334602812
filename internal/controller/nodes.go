package controller

import (
	"context"
	"errors"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// offered is what the account of nodes was last brought up to.
type offered struct {
	offers any
	phases string
}

// nodeSpans keeps the record of what every node offered, and when it was down, for the account of the site's capacity. A node that is
// only not heard of is what it was, and a machine that is off until somebody wants it is not down.
func (p *pass) nodeSpans(ctx context.Context) error {
	phases := make([]byte, 0, len(p.view.Nodes))
	for n := range p.view.Agents() {
		phase := p.Nodes[n.Name].Phase[0]
		if p.Rests(n.Name) {
			phase = '-'
		}
		phases = append(phases, phase)
	}
	now := offered{offers: p.view.Offers, phases: string(phases)}
	if now == p.offered {
		return nil
	}
	var errs []error
	for n := range p.view.Agents() {
		errs = append(errs, p.nodeSpan(ctx, p.view.NodeSpan(n.Name), n))
	}
	for _, s := range p.view.NodeSpans {
		if p.view.Agent(s.Node) == nil {
			errs = append(errs, p.nodeSpan(ctx, s, nil))
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		p.offered = now
	}
	if errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotLeader) {
		return nil // looked at again with the newer state
	}
	return err
}

// pruneEvery is how often what is kept for a time only is looked through.
const pruneEvery = time.Hour

// packEvery is how often logs of events are looked at. Nobody waits for that, so it wakes no pass.
const packEvery = time.Minute

// pruneStep is the pause between two parts of a look through the usage records.
const pruneStep = time.Second

// prune removes usage that is older than it is kept, tokens that have long expired, and events of clusters that are long gone.
func (p *pass) prune(ctx context.Context) error {
	if err := p.pruneUsage(ctx); err != nil {
		return err
	}
	if err := p.packEvents(ctx); err != nil {
		return err
	}
	if !p.pruningDue(p.pruned) {
		return nil
	}
	before := p.now.Add(-state.UsageKept)
	spans, err := p.writer.PruneNodeSpans(ctx, p.view, before)
	if err != nil {
		return err
	}
	tokens, err := p.writer.PruneTokens(ctx, p.view, before)
	if err != nil {
		return err
	}
	events, err := p.writer.PruneEvents(ctx, p.cfg.Cache, p.now.Add(-state.EventsKeptAfter))
	if err != nil {
		return err
	}
	provisioned, err := p.pruneProvisioning(ctx)
	if err != nil {
		return err
	}
	energy, err := p.writer.PruneEnergy(ctx, before)
	if err != nil {
		return err
	}
	if _, err := p.writer.MergeEnergy(ctx, p.now.Add(-state.EnergyByHour)); err != nil {
		return err
	}
	// Decisions that met a conflict leave chunks that no record names.
	if _, err := p.writer.CollectGarbage(ctx); err != nil {
		return err
	}
	if spans+tokens+events+provisioned+energy == 0 { // else there may be more
		p.pruned = p.now
	}
	return nil
}

// packEvents has events packed, some logs at a time.
func (p *pass) packEvents(ctx context.Context) error {
	if p.now.Sub(p.packed) < packEvery {
		return nil
	}
	n, err := p.writer.PackEvents(ctx, p.cfg.Cache, p.now)
	if err != nil {
		return err
	}
	if n > 0 { // there may be more
		p.sooner(p.now.Add(pruneStep))
		return nil
	}
	p.packed = p.now
	return nil
}

// pruningDue reports whether it is time to look through something again.
func (p *pass) pruningDue(last time.Time) bool {
	if last.IsZero() || p.now.Sub(last) >= pruneEvery {
		return true
	}
	p.sooner(last.Add(pruneEvery))
	return false
}

// pruneUsage looks through a part of the usage records: all of them would hold up the decisions of a large site.
func (p *pass) pruneUsage(ctx context.Context) error {
	if !p.pruningDue(p.usagePruned) {
		return nil
	}
	next, _, err := p.writer.PruneUsage(ctx, p.usageSeen, p.now.Add(-state.UsageKept))
	if err != nil {
		return err
	}
	if p.usageSeen = next; next != "" {
		p.sooner(p.now.Add(pruneStep))
		return nil
	}
	p.usagePruned = p.now
	return nil
}

// imageGrace is how long an image stays that nothing uses, and how long content stays that no image names yet.
const imageGrace = time.Hour

// pruneProvisioning removes builds and enrolment tokens that are long over, and images that nothing uses any more.
func (p *pass) pruneProvisioning(ctx context.Context) (int, error) {
	before := p.now.Add(-state.EventsKeptAfter)
	builds, err := p.writer.PruneBuilds(ctx, p.view, before)
	if err != nil {
		return 0, err
	}
	if err := p.dropBuildLogs(before); err != nil {
		p.log.WarnContext(ctx, "the output of old builds can't be removed", "error", err)
	}
	tokens, err := p.writer.PruneEnrollTokens(ctx, p.view, p.now.Add(-state.EventsKeptAfter))
	if err != nil {
		return 0, err
	}
	strangers, err := p.writer.PruneStrangers(ctx, p.view, p.now.Add(-state.EventsKeptAfter))
	if err != nil {
		return 0, err
	}
	p.dropMemberFiles(ctx)
	images, err := p.writer.PruneImages(ctx, p.view, p.now.Add(-imageGrace))
	if err != nil || p.cfg.Images == nil {
		return builds + tokens + strangers + images, err
	}
	inUse := make([]image.Digest, 0, len(p.view.Images))
	for _, i := range p.view.Images {
		inUse = append(inUse, image.Digest(i.Digest))
	}
	freed, err := p.cfg.Images.Collect(inUse, imageGrace)
	if freed > 0 || err != nil {
		p.remembered.forgetImages()
	}
	if err != nil {
		p.log.WarnContext(ctx, "images that nothing uses can't be removed", "error", err)
	} else if freed > 0 {
		p.log.InfoContext(ctx, "removed parts that no image uses", "bytes", freed)
	}
	return builds + tokens + strangers + images, nil
}

// filesGrace is how long files of a member stay that no cluster names yet: those of its cluster's other members may still be read, for hours.
const filesGrace = 3 * time.Hour

// dropMemberFiles removes files of members whose pause has ended, was never true, or whose cluster is gone.
func (p *pass) dropMemberFiles(ctx context.Context) {
	if p.cfg.MemberFiles == nil {
		return
	}
	freed, err := p.cfg.MemberFiles.CollectContent(memberFilesInUse(p.view), filesGrace)
	if err != nil {
		p.log.WarnContext(ctx, "files of paused members that nothing needs can't be removed", "error", err)
	}
	for _, b := range freed {
		p.log.InfoContext(ctx, "removed files of a paused member that nothing needs", "bytes", b.SizeBytes)
	}
}

// memberFilesInUse are the files of members that a pause has or is to have.
func memberFilesInUse(view *state.View) (inUse []image.Digest) {
	for _, c := range view.Clusters {
		for _, f := range c.Intent.PausedFiles {
			inUse = append(inUse, image.Digest(f.Digest))
		}
		if c.Record == nil {
			continue
		}
		for _, f := range c.Record.Files {
			inUse = append(inUse, image.Digest(f.Digest))
		}
	}
	return inUse
}

// dropBuildLogs removes what is stored of the output of builds that ended before a time.
func (p *pass) dropBuildLogs(before time.Time) error {
	var errs []error
	for _, b := range p.view.Builds {
		if b.EndedAt == nil || !b.EndedAt.Before(before) {
			continue
		}
		for run := *b; run.Attempt > 0; run.Attempt-- {
			errs = append(errs, p.cfg.Agents.DropLog(run.RunID()))
		}
	}
	return errors.Join(errs...)
}

// nodeSpan ends what a node offered until now, and begins what it offers from now on, where that differs. present is its present span, nil
// when it has none; n is nil when it is no longer in the inventory.
func (p *pass) nodeSpan(ctx context.Context, present *api.NodeSpan, n *api.NodeRecord) error {
	var next *api.NodeSpan
	if n != nil {
		next = &api.NodeSpan{
			Node: n.Name, Cores: len(n.Capacity.Cores), MemoryBytes: n.Capacity.MemoryBytes, Devices: resource.OfDevices(n.Capacity.Devices), From: p.now,
		}
		switch phase := p.Nodes[n.Name].Phase; {
		case phase == api.NodeReady || p.Rests(n.Name):
		case phase == api.NodeDown:
			next.Down = true
		default:
			next.Down = present != nil && present.Down
		}
		if present != nil && present.Down == next.Down && resource.OfNodeSpan(present).Equal(resource.OfNodeSpan(next)) {
			return nil
		}
	}
	revision, err := p.writer.CommitNodeSpan(ctx, present, next, p.now)
	if err != nil {
		return err
	}
	p.committed = max(p.committed, revision)
	return nil
}
