package etcd

import (
	"context"
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

// List returns the entries whose keys begin with prefix, as of one revision.
func (s *Store) List(ctx context.Context, prefix string) (store.Snapshot, error) {
	inner, end, err := s.begin(ctx)
	if err != nil {
		return store.Snapshot{}, err
	}
	defer end()
	r, err := s.client.Get(inner, root+prefix, clientv3.WithPrefix())
	if err != nil {
		return store.Snapshot{}, s.explain(ctx, err)
	}
	snap := store.Snapshot{Entries: make([]store.Entry, len(r.Kvs)), Revision: r.Header.Revision}
	for i, kv := range r.Kvs {
		snap.Entries[i] = entry(kv)
	}
	return snap, nil
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

func entry(kv *mvccpb.KeyValue) store.Entry {
	return store.Entry{Key: strings.TrimPrefix(string(kv.Key), root), Value: kv.Value, Revision: kv.ModRevision}
}
