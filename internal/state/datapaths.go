package state

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// DataFigures are what is stored of the ways of data to nodes, and of predictions about them.
type DataFigures struct {
	Paths    []api.DataPaths
	Outcomes []api.DataOutcomes
	// GoneNodes and GoneDatasets (UIDs) are those whose figures are removed.
	GoneNodes, GoneDatasets []string
}

// Empty reports whether there is nothing to store or to remove.
func (f *DataFigures) Empty() bool {
	return len(f.Paths)+len(f.Outcomes)+len(f.GoneNodes)+len(f.GoneDatasets) == 0
}

// PutDataFigures stores figures in place of those of the same node or dataset, and returns the revision of the last commit, 0 for none.
func (l *Leader) PutDataFigures(ctx context.Context, f DataFigures) (revision int64, err error) {
	var ops []store.Op
	for i := range f.Paths {
		ops = append(ops, put(prefixDataPaths+f.Paths[i].Node, f.Paths[i]))
	}
	for i := range f.Outcomes {
		ops = append(ops, put(prefixDataOutcomes+f.Outcomes[i].UID, f.Outcomes[i]))
	}
	for _, node := range f.GoneNodes {
		ops = append(ops, store.Op{Key: prefixDataPaths + node, Delete: true})
	}
	for _, uid := range f.GoneDatasets {
		ops = append(ops, store.Op{Key: prefixDataOutcomes + uid, Delete: true})
	}
	for len(ops) > 0 {
		n := min(len(ops), store.MaxOps)
		if revision, err = l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops[:n]); err != nil {
			return 0, fmt.Errorf("store the figures of datasets: %w", err)
		}
		ops = ops[n:]
	}
	return revision, nil
}
