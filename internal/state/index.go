package state

import (
	"slices"
	"strings"
)

// index finds values of a kind by something other than their names.
type index[T any] struct {
	// keys returns what a value is found by, in order and without repetition. Several values may have the same.
	keys func(*T) []string
	// in returns where a View has the directory.
	in func(*View) *directory
}

// directory has the names of values by a key, in the order of the keys. It and its entries never change. It is nil in a View that no Cache made.
type directory []*entry

// entry is the names of all values with a key, in their order.
type entry struct {
	key   string
	names []string
}

func (e *entry) keyOf() string { return e.key }

// by returns the values of a view that an index has under a key, in the order of their names.
func (k *kind[T]) by(v *View, x *index[T], key string) []*T {
	all, dir := *k.list(v), *x.in(v)
	var found []*T
	if dir == nil {
		for _, one := range all {
			if slices.Contains(x.keys(one), key) {
				found = append(found, one)
			}
		}
		return found
	}
	e := find(dir, key, (*entry).keyOf)
	if e == nil {
		return nil
	}
	for _, name := range e.names {
		if one := find(all, name, k.name); one != nil { // a copy of a View may list less
			found = append(found, one)
		}
	}
	return found
}

// first returns the first of some values, or nil.
func first[T any](all []*T) *T {
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// directoryTable is a directory that changes: share hands it out, and the first change after that copies it.
type directoryTable struct {
	entries directory
	shared  bool
}

// move takes a name from the keys that its value was found by to those it is found by now.
func (d *directoryTable) move(name string, was, is []string) {
	if slices.Equal(was, is) {
		return
	}
	for _, key := range was {
		if _, stays := slices.BinarySearch(is, key); !stays {
			d.change(key, func(names []string) []string {
				return slices.DeleteFunc(names, func(n string) bool { return n == name })
			})
		}
	}
	for _, key := range is {
		if _, stayed := slices.BinarySearch(was, key); stayed {
			continue
		}
		d.change(key, func(names []string) []string {
			i, _ := slices.BinarySearch(names, name)
			return slices.Insert(names, i, name)
		})
	}
}

// change replaces the names under a key by what edit makes of a copy of them.
func (d *directoryTable) change(key string, edit func(names []string) []string) {
	if d.shared {
		d.entries, d.shared = slices.Clone(d.entries), false
	}
	i, ok := slices.BinarySearchFunc(d.entries, key, func(e *entry, k string) int { return strings.Compare(e.key, k) })
	var names []string
	if ok {
		names = slices.Clone(d.entries[i].names)
	}
	switch names = edit(names); {
	case len(names) == 0 && ok:
		d.entries = slices.Delete(d.entries, i, i+1)
	case len(names) == 0:
	case ok:
		d.entries[i] = &entry{key, names}
	default:
		d.entries = slices.Insert(d.entries, i, &entry{key, names})
	}
}

func (d *directoryTable) share() directory {
	d.shared = true
	if d.entries == nil {
		return directory{}
	}
	return d.entries
}
