package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// release deletes the cluster, and waits until all machines rest.
func (b *wholeBench) release(ctx context.Context, r *wholeRun, rests api.MachinePhase) error {
	began := time.Now()
	if _, err := b.site.client.DeleteCluster(ctx, wholeName); err != nil {
		return err
	}
	for change, err := range b.site.client.WatchCluster(ctx, wholeName) {
		if change.Deleted || gone(err) {
			break
		}
		if err != nil {
			return err
		}
	}
	r.gone = time.Since(began).Seconds()
	err := b.rest(ctx, rests, r.size)
	r.free = time.Since(began).Seconds()
	return err
}

// lose cuts the power of the only machine of a cluster, and waits until another one has its place.
func (b *wholeBench) lose(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*wholeLimit)
	defer cancel()
	if err := b.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.site.stop()) }()
	if err := errors.Join(b.rest(ctx, api.MachineOff, 2), b.create(ctx, 1)); err != nil {
		return err
	}
	cluster, err := b.site.client.Cluster(ctx, wholeName)
	if err != nil {
		return err
	}
	was := cluster.Status.Members[0].Node
	began := time.Now()
	if err := b.dc.CutPower(was); err != nil {
		return err
	}
	var took [3]float64
	for change, err := range b.site.client.WatchCluster(ctx, wholeName) {
		if err != nil {
			return err
		}
		status := change.Cluster.Status
		ready := slices.IndexFunc(status.Members, func(m api.MemberStatus) bool { return m.Phase == api.MemberReady })
		switch {
		case took[0] == 0 && (ready < 0 || status.Members[ready].Node != was):
			took[0] = time.Since(began).Seconds()
		case took[0] > 0 && took[1] == 0 && ready >= 0 && status.Members[ready].Node != was && status.Phase == api.ClusterReady:
			took[1] = time.Since(began).Seconds()
		}
		if took[1] > 0 {
			break
		}
	}
	err = b.mpi(ctx, 1)
	took[2] = time.Since(began).Seconds()
	if err == nil {
		b.lost = append(b.lost, took)
		b.log.Info("whole", "lost", took)
	}
	return errors.Join(err, b.release(ctx, &wholeRun{size: 1}, api.MachineOff))
}
