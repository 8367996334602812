package agent

import (
	"context"
	"fmt"
	"path"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// Datasets keeps the node's replicas of datasets. *replica.Store implements it.
type Datasets interface {
	// Run fetches what is wanted, and removes what is to go, until ctx ends.
	Run(ctx context.Context)
	// Want takes all that the leader wants of datasets here.
	Want(all []dataset.Wanted)
	// Use takes the UIDs of all datasets that members have or are about to have: none of these is removed.
	Use(uids map[string]bool)
	States() []dataset.State
	// Place is the directory with the files of a dataset, once it is ready.
	Place(uid string) string
	// Ready reports whether all files are there, verified, and if not, how far they are.
	Ready(uid string) (ok bool, why string)
	// Paths are what was seen last of the ways of data to this node. Probe has the distance of places measured.
	Paths() []dataset.Passage
	Probe(ctx context.Context, places []string)
}

// wantDatasets passes on what the leader wants of datasets. What members have is said first: nothing of it may go.
func (a *Agent) wantDatasets(ctx context.Context, d *agentstream.Desired) {
	if a.cfg.Caches != nil {
		a.cfg.Caches.Want(d.Caches)
	}
	if a.cfg.Datasets == nil {
		return
	}
	a.useDatasets()
	a.cfg.Datasets.Want(d.Datasets)
	a.cfg.Datasets.Probe(ctx, d.Probes)
}

// useDatasets names the datasets of the members that are here, or are to be.
func (a *Agent) useDatasets() {
	if a.cfg.Datasets == nil {
		return
	}
	used := map[string]bool{}
	for _, m := range a.members {
		if m.want == nil || m.gone() {
			continue
		}
		for _, claim := range m.want.Datasets {
			if claim.Copied() {
				used[claim.UID] = true
			}
		}
	}
	a.cfg.Datasets.Use(used)
}

// placeDatasets adds the datasets of a member to its mounts.
func (a *Agent) placeDatasets(w *agentstream.Member) {
	if a.cfg.Datasets == nil {
		return // it is not started: see datasetsReady
	}
	for _, claim := range w.Datasets {
		if !claim.Copied() {
			continue
		}
		w.Mounts = append(w.Mounts, driver.Mount{Source: a.cfg.Datasets.Place(claim.UID), Path: path.Join(api.DatasetsPath, claim.Name), ReadOnly: true})
	}
}

// datasetsReady reports whether all datasets of a member are here. Waiting for them costs the member no attempt: that one comes wakes the loop.
func (a *Agent) datasetsReady(m *memberState) bool {
	for _, claim := range m.want.Datasets {
		if !claim.Copied() {
			if ok, why := a.cacheReady(claim); !ok {
				m.message = fmt.Sprintf("dataset %q %s", claim.Name, why)
				return false
			}
			continue
		}
		if a.cfg.Datasets == nil {
			m.message = fmt.Sprintf("dataset %q can't be had: this node's agent keeps no datasets", claim.Name)
			return false
		}
		if ok, why := a.cfg.Datasets.Ready(claim.UID); !ok {
			m.message = fmt.Sprintf("dataset %q %s", claim.Name, why)
			return false
		}
	}
	return true
}

func (a *Agent) observedDatasets() []dataset.State {
	if a.cfg.Datasets == nil {
		return nil
	}
	return a.cfg.Datasets.States()
}

func (a *Agent) observedPaths() []dataset.Passage {
	if a.cfg.Datasets == nil {
		return nil
	}
	return a.cfg.Datasets.Paths()
}
