package state

import (
	"context"
	"fmt"
	"iter"

	"github.com/nearmetal/nearmetal/internal/store"
)

// pageEntries is how many entries are read at once of what may be many.
const pageEntries = 1024

// entries yields what is stored under a prefix after a key, "" for all, a page at a time. An entry that was written after a revision is left
// out: so of entries that never change, which are written or removed meanwhile, those that were there at the revision are found.
func (r *Repo) entries(ctx context.Context, prefix, after string, revision int64) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for last := after; ; {
			page, err := r.store.Page(ctx, prefix, last, pageEntries)
			if err != nil {
				yield(store.Entry{}, fmt.Errorf("list %s: %w", prefix, err))
				return
			}
			for _, e := range page.Entries {
				if e.Revision <= revision && !yield(e, nil) {
					return
				}
				last = e.Key
			}
			if len(page.Entries) < pageEntries {
				return
			}
		}
	}
}
