package etcd

import (
	"context"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/nearmetal/nearmetal/internal/store"
)

// Get returns the entry of key, read linearizably.
func (s *Store) Get(ctx context.Context, key string) (store.Entry, bool, error) {
	inner, end, err := s.begin(ctx)
	if err != nil {
		return store.Entry{}, false, err
	}
	defer end()
	r, err := s.client.Get(inner, root+key)
	if err != nil {
		return store.Entry{}, false, s.explain(ctx, err)
	}
	if len(r.Kvs) == 0 {
		return store.Entry{}, false, nil
	}
	return entry(r.Kvs[0]), true, nil
}

// List returns the entries whose keys begin with one of the prefixes, as of one revision.
func (s *Store) List(ctx context.Context, prefixes ...string) (store.Snapshot, error) {
	inner, end, err := s.begin(ctx)
	if err != nil {
		return store.Snapshot{}, err
	}
	defer end()
	var gets []clientv3.Op
	for _, prefix := range slices.Sorted(slices.Values(prefixes)) {
		gets = append(gets, clientv3.OpGet(root+prefix, clientv3.WithPrefix()))
	}
	r, err := s.client.Txn(inner).Then(gets...).Commit()
	if err != nil {
		return store.Snapshot{}, s.explain(ctx, err)
	}
	snap := store.Snapshot{Revision: r.Header.Revision}
	for _, one := range r.Responses {
		snap.Entries = append(snap.Entries, entries(one.GetResponseRange().Kvs)...)
	}
	return snap, nil
}

// Page returns the first entries under a prefix after a key, read linearizably.
func (s *Store) Page(ctx context.Context, prefix, after string, limit int) (store.Snapshot, error) {
	inner, end, err := s.begin(ctx)
	if err != nil {
		return store.Snapshot{}, err
	}
	defer end()
	from := root + prefix
	if after != "" {
		from = root + after + "\x00" // the first key there can be after it
	}
	r, err := s.client.Get(inner, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(root+prefix)), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return store.Snapshot{}, s.explain(ctx, err)
	}
	return store.Snapshot{Entries: entries(r.Kvs), Revision: r.Header.Revision}, nil
}

// Commit writes ops in one transaction, synced to disk before it returns.
func (s *Store) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	if err := store.CheckCommit(conds, ops); err != nil {
		return 0, err
	}
	inner, end, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	var guard *store.Cond
	cmps := make([]clientv3.Cmp, len(conds))
	for i, c := range conds {
		// The mod revision of a key that is not there is 0, which is what a Cond means by 0.
		cmps[i] = clientv3.Compare(clientv3.ModRevision(root+c.Key), "=", c.Revision)
		if c.Leader {
			guard = &conds[i]
		}
	}
	txn := s.client.Txn(inner).If(cmps...).Then(requests(ops)...)
	if guard != nil {
		txn = txn.Else(clientv3.OpGet(root + guard.Key))
	}
	r, err := txn.Commit()
	if err != nil {
		return 0, s.explain(ctx, err)
	}
	if r.Succeeded {
		return r.Header.Revision, nil
	}
	if guard != nil {
		if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].ModRevision != guard.Revision {
			return 0, store.ErrNotLeader
		}
	}
	return 0, store.ErrConflict
}

// Compact forgets the history up to and including revision. The embedded server does so by itself with time.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	inner, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, err = s.client.Compact(inner, revision)
	return s.explain(ctx, err)
}

func requests(ops []store.Op) []clientv3.Op {
	rs := make([]clientv3.Op, len(ops))
	for i, op := range ops {
		switch {
		case op.DeletePrefix:
			rs[i] = clientv3.OpDelete(root+op.Key, clientv3.WithPrefix())
		case op.Delete:
			rs[i] = clientv3.OpDelete(root + op.Key)
		default:
			rs[i] = clientv3.OpPut(root+op.Key, string(op.Value))
		}
	}
	return rs
}

func entries(kvs []*mvccpb.KeyValue) []store.Entry {
	all := make([]store.Entry, len(kvs))
	for i, kv := range kvs {
		all[i] = entry(kv)
	}
	return all
}

func entry(kv *mvccpb.KeyValue) store.Entry {
	return store.Entry{Key: strings.TrimPrefix(string(kv.Key), root), Value: kv.Value, Revision: kv.ModRevision}
}
