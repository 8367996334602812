package state

import (
	"fmt"

	"github.com/nearmetal/nearmetal/internal/store"
)

// registration is all the package knows of the keys that begin with a prefix: kinds lists them. A kind and a stored are one.
type registration interface {
	// at returns the prefix.
	at() string
	// open gives fresh tables what put needs.
	open(t *tables)
	// put takes up a key as written, remove a deleted one. rest is the key without the prefix.
	put(t *tables, rest string, e store.Entry) error
	remove(t *tables, rest string)
	// bounded returns what is stored of a value: its texts have a bounded length. It panics for a value that is not of this prefix.
	bounded(v any) any
}

// kind is the registration of one kind of object: where its keys begin, its type, its name, and how else it is found. Reading, listing in a
// View and bounding follow from it; who writes it, and when, is for the methods of Repo and Leader.
type kind[T any] struct {
	// prefix begins the keys; "" for an object of several parts, each a stored of its own.
	prefix string
	// name returns what a View orders and finds a value by. Names sort as the rests of the keys do.
	name func(*T) string
	// list returns where a View has the values.
	list func(*View) *[]*T
	// indexes find values by something other than their names.
	indexes []*index[T]
	// bound shortens texts that tenants, nodes or BMCs may have worded; nil: there are none.
	bound func(*T)
}

func (k *kind[T]) at() string { return k.prefix }

func (k *kind[T]) open(t *tables) {
	if t.byKind[k] == nil {
		made := &table[T]{kind: k, directories: make([]directoryTable, len(k.indexes))}
		t.byKind[k] = made
		t.shown = append(t.shown, made)
	}
}

func (k *kind[T]) put(t *tables, rest string, e store.Entry) error {
	v := new(T)
	if err := decode(e, v); err != nil {
		return err
	}
	tableOf(t, k).put(rest, v)
	return nil
}

func (k *kind[T]) remove(t *tables, rest string) { tableOf(t, k).remove(rest) }

func (k *kind[T]) bounded(v any) any { return boundedAs(v, k.bound) }

// find returns the value of a name in a view, or nil.
func (k *kind[T]) find(v *View, name string) *T { return find(*k.list(v), name, k.name) }

// stored is the registration of what is under a prefix and no object by itself: a part of one, or a mark that only commits look at.
type stored[V any] struct {
	prefix string
	// of is the kind that it is a part of; nil: of none.
	of interface{ open(t *tables) }
	// take takes up a value as written, drop a deleted one; nil: there is nothing to do.
	take func(t *tables, rest string, v *V, revision int64) error
	drop func(t *tables, rest string)
	// bound is as that of a kind.
	bound func(*V)
}

func (s *stored[V]) at() string { return s.prefix }

func (s *stored[V]) open(t *tables) {
	if s.of != nil {
		s.of.open(t)
	}
}

func (s *stored[V]) put(t *tables, rest string, e store.Entry) error {
	if s.take == nil {
		return nil
	}
	v := new(V)
	if err := decode(e, v); err != nil {
		return err
	}
	return s.take(t, rest, v, e.Revision)
}

func (s *stored[V]) remove(t *tables, rest string) {
	if s.drop != nil {
		s.drop(t, rest)
	}
}

func (s *stored[V]) bounded(v any) any { return boundedAs(v, s.bound) }

// boundedAs returns a copy of v, which is a V or points to one, with its texts bounded.
func boundedAs[V any](v any, bound func(*V)) any {
	var c V
	switch v := v.(type) {
	case V:
		c = v
	case *V:
		c = *v
	default:
		panic(fmt.Sprintf("state: %T can't be stored where %T is", v, c))
	}
	if bound != nil {
		bound(&c)
	}
	return c
}

// registered returns the registration of a prefix, or nil.
func registered(prefix string) registration {
	for _, r := range kinds {
		if r.at() == prefix {
			return r
		}
	}
	return nil
}
