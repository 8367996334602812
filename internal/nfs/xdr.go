package nfs

import "encoding/binary"

// reader reads XDR (RFC 4506). Once something was missing, it is short and everything that follows reads as zero.
type reader struct {
	data  []byte
	short bool
}

func (r *reader) fixed(n int) []byte {
	padded := (n + 3) &^ 3
	if n < 0 || padded > len(r.data) {
		r.data, r.short = nil, true
		return nil
	}
	value := r.data[:n:n]
	r.data = r.data[padded:]
	return value
}

func (r *reader) u32() uint32 {
	b := r.fixed(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func (r *reader) u64() uint64 {
	b := r.fixed(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func (r *reader) boolean() bool { return r.u32() != 0 }

// opaque reads bytes of a length that comes before them, and is short where that is more than most.
func (r *reader) opaque(most int) []byte {
	n := r.u32()
	if n > uint32(most) {
		r.data, r.short = nil, true
		return nil
	}
	return r.fixed(int(n))
}

// writer writes XDR. tree is the number of the tree whose files' attributes it writes.
type writer struct {
	data []byte
	tree uint64
}

func (w *writer) u32(v uint32) { w.data = binary.BigEndian.AppendUint32(w.data, v) }
func (w *writer) u64(v uint64) { w.data = binary.BigEndian.AppendUint64(w.data, v) }

func (w *writer) boolean(v bool) {
	if v {
		w.u32(1)
		return
	}
	w.u32(0)
}

func (w *writer) opaque(b []byte) {
	w.u32(uint32(len(b)))
	w.data = append(w.data, b...)
	w.pad()
}

// pad fills up to a multiple of four bytes. What a reply has before its results is such a multiple.
func (w *writer) pad() {
	for len(w.data)%4 != 0 {
		w.data = append(w.data, 0)
	}
}
