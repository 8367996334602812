package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// PutNode stores what a node's agent reported. A known node keeps its FirstSeenAt; when nothing changed, nothing is written,
// so that reconnecting agents cost no disk writes. It returns the revision that holds the record.
func (r *Repo) PutNode(ctx context.Context, node api.NodeRecord) (int64, error) {
	key := prefixNode + node.Name
	for {
		old, found, err := r.store.Get(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("read node %q: %w", node.Name, err)
		}
		if found {
			var was api.NodeRecord
			if err := decode(old, &was); err != nil {
				return 0, err
			}
			node.FirstSeenAt = was.FirstSeenAt
		}
		op := put(key, node)
		if found && bytes.Equal(op.Value, old.Value) {
			return old.Revision, nil
		}
		revision, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: old.Revision}}, []store.Op{op})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("store node %q: %w", node.Name, err)
		}
		return revision, nil
	}
}

// ForgetNode takes a node out of the inventory, with its identity and what operators wanted of it; its past usage stays. It refuses with ErrInUse while
// view has anything on the node, and ErrNotFound tells that there is none. Its agent is cut off and can't come
// back before it enrolls again.
func (r *Repo) ForgetNode(ctx context.Context, view *View, name string) (int64, error) {
	if on := view.OnNode(name); len(on) > 0 {
		return 0, fmt.Errorf("node %q is %w by %s; drain it and wait until its members are gone, then forget it", name, ErrInUse, several(on, "member"))
	}
	for {
		if err := r.withoutVolumesOn(ctx, name); err != nil {
			return 0, err
		}
		_, agent, err := get[api.NodeRecord](ctx, r, prefixNode+name, "node", name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		_, identity, none := get[api.NodeIdentity](ctx, r, prefixIdentity+name, "node", name)
		if none != nil && (err != nil || !errors.Is(none, ErrNotFound)) {
			return 0, none
		}
		ops := []store.Op{{Key: prefixNode + name, Delete: true}, {Key: prefixControl + name, Delete: true}, {Key: prefixMeasures + name, Delete: true}, {Key: prefixFaults + name, Delete: true}, {Key: prefixIdentity + name, Delete: true}}
		next, err := r.store.Commit(ctx, []store.Cond{{Key: prefixNode + name, Revision: agent}, {Key: prefixIdentity + name, Revision: identity}}, ops)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("forget node %q: %w", name, err)
		}
		return next, nil
	}
}

// several names the first of a few things: "3 members (a, b, ...)".
func several(names []string, what string) string {
	const shown = 3
	list := strings.Join(names[:min(len(names), shown)], ", ")
	switch {
	case len(names) == 1:
		return fmt.Sprintf("1 %s (%s)", what, list)
	case len(names) > shown:
		list += ", ..."
	}
	if strings.HasSuffix(what, "s") {
		what += "e"
	}
	return fmt.Sprintf("%d %ss (%s)", len(names), what, list)
}

// them is the pronoun for what several counts.
func them(names []string) string {
	if len(names) == 1 {
		return "it"
	}
	return "them"
}

// Nodes returns all nodes, by name.
func (r *Repo) Nodes(ctx context.Context) ([]api.NodeRecord, error) {
	return list[api.NodeRecord](ctx, r, prefixNode)
}
