package agentstream

import (
	"bytes"
	"encoding/json"
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

// item is an element of one of a state's lists. Without a value the element is gone.
type item struct {
	List  string          `json:"list"`
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value,omitempty"`
}

// list is one of the lists that a state consists of.
type list[S any] struct {
	name string
	// changes calls emit for each element that differs between two states; value is nil for one that is gone.
	changes func(before, after *S, emit func(key string, value any) error) error
	decode  func(json.RawMessage) (any, error)
	// fill sets the list of a state to these elements, in this order.
	fill func(into *S, elements []any)
}

// listOf describes a list whose elements are told apart by a key.
func listOf[S, T any](name string, of func(*S) *[]T, key func(*T) string) list[S] {
	return list[S]{
		name: name,
		changes: func(before, after *S, emit func(string, any) error) error {
			old := map[string]*T{}
			for i := range *of(before) {
				element := &(*of(before))[i]
				old[key(element)] = element
			}
			for i := range *of(after) {
				element := &(*of(after))[i]
				k := key(element)
				was := old[k]
				delete(old, k)
				if was != nil && reflect.DeepEqual(was, element) {
					continue
				}
				if err := emit(k, element); err != nil {
					return err
				}
			}
			for _, k := range slices.Sorted(maps.Keys(old)) {
				if err := emit(k, nil); err != nil {
					return err
				}
			}
			return nil
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
		err := l.changes(&o.sent, &next, func(key string, value any) error {
			changed := item{List: l.name, Key: key}
			if value != nil {
				encoded, err := encode(value)
				if err != nil {
					return err
				}
				changed.Value = encoded
			}
			if size > 0 && size+len(changed.Value) > pieceBytes {
				if err := flush(); err != nil {
					return err
				}
			}
			pending.Items = append(pending.Items, changed)
			size += len(l.name) + len(key) + len(changed.Value)
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
		if old, known := held[changed.Key]; known {
			in.items--
			in.bytes -= old.bytes
			delete(held, changed.Key)
		}
		if changed.Value == nil {
			continue
		}
		element, err := in.lists[i].decode(changed.Value)
		if err != nil {
			return fmt.Errorf("state in pieces: %s %q: %w", changed.List, changed.Key, err)
		}
		kept := heldItem{element, len(changed.Key) + len(changed.Value)}
		held[changed.Key] = kept
		in.items++
		in.bytes += kept.bytes
		if in.items > maxHeldItems || in.bytes > in.mostBytes {
			return fmt.Errorf("the peer's state has more than %d items or %d bytes", maxHeldItems, in.mostBytes)
		}
	}
	return nil
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
