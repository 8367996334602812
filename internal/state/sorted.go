package state

import "slices"

// sorted is a map in key order whose values can be handed out without copying: share returns the live slice, and the first
// change after that copies it.
type sorted[T any] struct {
	keys   []string
	values []*T
	shared bool
}

func (s *sorted[T]) get(key string) *T {
	if i, ok := slices.BinarySearch(s.keys, key); ok {
		return s.values[i]
	}
	return nil
}

func (s *sorted[T]) set(key string, v *T) {
	s.own()
	i, ok := slices.BinarySearch(s.keys, key)
	if ok {
		s.values[i] = v
		return
	}
	s.keys = slices.Insert(s.keys, i, key)
	s.values = slices.Insert(s.values, i, v)
}

func (s *sorted[T]) remove(key string) {
	if i, ok := slices.BinarySearch(s.keys, key); ok {
		s.own()
		s.keys = slices.Delete(s.keys, i, i+1)
		s.values = slices.Delete(s.values, i, i+1)
	}
}

func (s *sorted[T]) share() []*T {
	s.shared = true
	return s.values
}

func (s *sorted[T]) own() {
	if s.shared {
		s.values, s.shared = slices.Clone(s.values), false
	}
}
