package agentstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

const (
	// pieceBytes is about how much one piece carries. Pings and answers pass between two pieces.
	pieceBytes = 256 << 10
	// maxHeldItems and maxHeldBytes bound the state that one end keeps of the other.
	maxHeldItems = 1 << 18
	maxHeldBytes = 256 << 20
)

// piece is part of a change from the state that was sent last on this stream, nothing at first, to the next one.
type piece struct {
	Items []item `json:"items,omitempty"`
	// Head is set in the last piece of a change: the state is whole again, and these are its single values.
	Head json.RawMessage `json:"head,omitempty"`
}

// item is an element of one of a state's lists, or the change that makes it of the one with its key that was sent before. With neither the
// element is gone.
type item struct {
	List  string          `json:"list"`
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value,omitempty"`
	Edit  json.RawMessage `json:"edit,omitempty"`
}

// emitter takes an item, whose list it sets.
type emitter func(item) error

// list is one of the lists that a state consists of.
type list[S any] struct {
	name string
	// changes calls emit for each element that differs between two states.
	changes func(before, after *S, emit emitter) error
	decode  func(json.RawMessage) (any, error)
	// edit makes the element that a change makes of another, and tells its size; nil: elements of this list are sent whole.
	edit func(was any, edit json.RawMessage) (any, int, error)
	// fill sets the list of a state to these elements, in this order.
	fill func(into *S, elements []any)
}

// listOf describes a list whose elements are told apart by a key.
func listOf[S, T any](name string, of func(*S) *[]T, key func(*T) string) list[S] {
	return list[S]{
		name: name,
		changes: func(before, after *S, emit emitter) error {
			return changesOf(*of(before), *of(after), key, func(element *T) any { return element }, emit)
		},
		decode: func(raw json.RawMessage) (any, error) {
			var element T
			err := json.Unmarshal(raw, &element)
			return element, err
		},
		fill: func(into *S, elements []any) {
			all := make([]T, 0, len(elements))
			for _, element := range elements {
				all = append(all, element.(T))
			}
			*of(into) = all
		},
	}
}

// changesOf emits the elements that differ between two lists, as they are to be sent.
func changesOf[T any](before, after []T, key func(*T) string, sent func(*T) any, emit emitter) error {
	old := make(map[string]*T, len(before))
	for i := range before {
		old[key(&before[i])] = &before[i]
	}
	for i := range after {
		element := &after[i]
		k := key(element)
		was := old[k]
		delete(old, k)
		if was != nil && reflect.DeepEqual(was, element) {
			continue
		}
		encoded, err := encode(sent(element))
		if err != nil {
			return err
		}
		if err := emit(item{Key: k, Value: encoded}); err != nil {
			return err
		}
	}
	return emitGone(old, emit)
}

// emitGone emits that what is left of a former state is gone.
func emitGone[T any](left map[string]T, emit emitter) error {
	for _, k := range slices.Sorted(maps.Keys(left)) {
		if err := emit(item{Key: k}); err != nil {
			return err
		}
	}
	return nil
}

// outgoing turns states into pieces: of each state only what differs from the one before.
type outgoing[S any] struct {
	lists []list[S]
	sent  S
}

// send sends the pieces that make next of the state sent before.
func (o *outgoing[S]) send(next S, head any, send func(piece) error) error {
	var (
		pending piece
		size    int
	)
	flush := func() error {
		err := send(pending)
		pending, size = piece{}, 0
		return err
	}
	for _, l := range o.lists {
		err := l.changes(&o.sent, &next, func(changed item) error {
			changed.List = l.name
			carried := len(changed.Value) + len(changed.Edit)
			if size > 0 && size+carried > pieceBytes {
				if err := flush(); err != nil {
					return err
				}
			}
			pending.Items = append(pending.Items, changed)
			size += len(l.name) + len(changed.Key) + carried
			return nil
		})
		if err != nil {
			return err
		}
	}
	encoded, err := encode(head)
	if err != nil {
		return err
	}
	pending.Head = encoded
	o.sent = next
	return flush()
}

// incoming puts a state together from pieces.
type incoming[S any] struct {
	lists []list[S]
	held  map[string]map[string]heldItem // by list and key
	items int
	bytes int
	// mostBytes is the most that is kept.
	mostBytes int
}

type heldItem struct {
	element any
	bytes   int // of its key and value
}

func newIncoming[S any](lists []list[S]) *incoming[S] {
	in := &incoming[S]{lists: lists, held: map[string]map[string]heldItem{}, mostBytes: maxHeldBytes}
	for _, l := range lists {
		in.held[l.name] = map[string]heldItem{}
	}
	return in
}

// take takes over a piece. Lists that this version does not know are ignored.
func (in *incoming[S]) take(p piece) error {
	for _, changed := range p.Items {
		i := slices.IndexFunc(in.lists, func(l list[S]) bool { return l.name == changed.List })
		if i < 0 {
			continue
		}
		held := in.held[changed.List]
		old, known := held[changed.Key]
		if known {
			in.items--
			in.bytes -= old.bytes
			delete(held, changed.Key)
		}
		if changed.Value == nil && changed.Edit == nil {
			continue
		}
		element, size, err := in.lists[i].element(changed, old.element)
		if err != nil {
			return fmt.Errorf("state in pieces: %s %q: %w", changed.List, changed.Key, err)
		}
		kept := heldItem{element, len(changed.Key) + size}
		held[changed.Key] = kept
		in.items++
		in.bytes += kept.bytes
		if in.items > maxHeldItems || in.bytes > in.mostBytes {
			return fmt.Errorf("the peer's state has more than %d items or %d bytes", maxHeldItems, in.mostBytes)
		}
	}
	return nil
}

// element makes the element of an item, and tells its size. was is the one before, nil for none.
func (l *list[S]) element(changed item, was any) (any, int, error) {
	if changed.Edit == nil {
		element, err := l.decode(changed.Value)
		return element, len(changed.Value), err
	}
	if l.edit == nil || was == nil {
		return nil, 0, errors.New("there is nothing that this is a change of")
	}
	return l.edit(was, changed.Edit)
}

// whole returns the state as the pieces so far have made it, each list in the order of its keys.
func (in *incoming[S]) whole() S {
	var state S
	for _, l := range in.lists {
		held := in.held[l.name]
		elements := make([]any, 0, len(held))
		for _, key := range slices.Sorted(maps.Keys(held)) {
			elements = append(elements, held[key].element)
		}
		l.fill(&state, elements)
	}
	return state
}

// encode encodes a value as JSON. What HTML would mind is left as it is, which else would take six bytes a letter.
func encode(value any) (json.RawMessage, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, fmt.Errorf("encode a stream message: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
