package state

// table has the values of one kind, by the rests of their keys, and the directories of its indexes.
type table[T any] struct {
	kind *kind[T]
	rows sorted[T]
	// directories are those of kind.indexes.
	directories []directoryTable
}

// tableOf returns the table of a kind.
func tableOf[T any](t *tables, k *kind[T]) *table[T] { return t.byKind[k].(*table[T]) }

func (tb *table[T]) get(rest string) *T { return tb.rows.get(rest) }

// edit returns a copy of a value to change, or a new one.
func (tb *table[T]) edit(rest string) *T {
	next := new(T)
	if old := tb.rows.get(rest); old != nil {
		*next = *old
	}
	return next
}

func (tb *table[T]) put(rest string, v *T) {
	tb.file(rest, tb.rows.get(rest), v)
	tb.rows.set(rest, v)
}

func (tb *table[T]) remove(rest string) {
	if old := tb.rows.get(rest); old != nil {
		tb.file(rest, old, nil)
		tb.rows.remove(rest)
	}
}

// file brings the directories from an old value to a new one; nil: there is none. A kind with indexes has names that are the rests of its keys:
// of an object in parts, the one that says its name may come last.
func (tb *table[T]) file(name string, old, v *T) {
	for i, x := range tb.kind.indexes {
		var was, is []string
		if old != nil {
			was = x.keys(old)
		}
		if v != nil {
			is = x.keys(v)
		}
		tb.directories[i].move(name, was, is)
	}
}

// show puts what the table has into a view, without copying.
func (tb *table[T]) show(v *View) {
	*tb.kind.list(v) = tb.rows.share()
	for i, x := range tb.kind.indexes {
		*x.in(v) = tb.directories[i].share()
	}
}
