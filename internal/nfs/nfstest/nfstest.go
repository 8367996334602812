// Package nfstest is a small NFS client for tests: it speaks RFC 1813 by itself, so that a test does not take the server's word for what the protocol
// is. It must never be part of a product. Start with Client.
package nfstest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// Client calls a server in somebody's name.
type Client struct {
	// Do sends a call and returns its reply, both without record marks.
	Do       func(call []byte) ([]byte, error)
	UID, GID uint32
	Groups   []uint32
	xid      uint32
}

// Over returns what calls over a connection.
func Over(conn net.Conn) func([]byte) ([]byte, error) {
	return func(call []byte) ([]byte, error) {
		mark := binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(call)))
		if _, err := conn.Write(append(mark, call...)); err != nil {
			return nil, err
		}
		var header [4]byte
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			return nil, err
		}
		reply := make([]byte, binary.BigEndian.Uint32(header[:])&^(1<<31))
		_, err := io.ReadFull(conn, reply)
		return reply, err
	}
}

// Numbers of programs.
const (
	NFS   = 100003
	Mount = 100005
)

// Numbers of procedures of NFS.
const (
	GetAttr = iota + 1
	SetAttr
	Lookup
	Access
	ReadLink
	Read
	Write
	Create
	MkDir
	SymLink
	MkNod
	Remove
	RmDir
	Rename
	Link
	ReadDir
	ReadDirPlus
	FSStat
	FSInfo
	PathConf
	Commit
)

// Args are arguments: words, 64-bit words, and opaque bytes.
type Args []byte

// U32 appends words.
func (a Args) U32(words ...uint32) Args {
	for _, w := range words {
		a = binary.BigEndian.AppendUint32(a, w)
	}
	return a
}

// U64 appends a 64-bit word.
func (a Args) U64(v uint64) Args { return binary.BigEndian.AppendUint64(a, v) }

// Bytes appends opaque bytes with their length.
func (a Args) Bytes(b []byte) Args {
	a = append(a.U32(uint32(len(b))), b...)
	for len(a)%4 != 0 {
		a = append(a, 0)
	}
	return a
}

// Call makes a call without numbering it: what it returns can be sent again.
func (c *Client) Call(program, procedure uint32, args Args) []byte {
	c.xid++
	who := Args{}.U32(0).Bytes([]byte("test")).U32(c.UID, c.GID, uint32(len(c.Groups))).U32(c.Groups...)
	call := Args{}.U32(c.xid, 0, 2, program, 3, procedure, 1).Bytes(who).U32(0, 0)
	return append(call, args...)
}

// Reply is the results of a call.
type Reply struct {
	data []byte
	err  error
}

// U32 takes a word.
func (r *Reply) U32() uint32 { return uint32(r.number(4)) }

// U64 takes a 64-bit word.
func (r *Reply) U64() uint64 { return r.number(8) }

func (r *Reply) number(size int) uint64 {
	var v uint64
	for _, b := range r.Fixed(size) {
		v = v<<8 | uint64(b)
	}
	return v
}

// Fixed takes as many bytes.
func (r *Reply) Fixed(n int) []byte {
	padded := (n + 3) &^ 3
	if padded > len(r.data) {
		r.err, r.data = fmt.Errorf("the reply ends before %d bytes", n), nil
		return nil
	}
	b := r.data[:n]
	r.data = r.data[padded:]
	return b
}

// Bytes takes opaque bytes.
func (r *Reply) Bytes() []byte { return r.Fixed(int(r.U32())) }

// End returns an error unless all of the reply was taken, and no more.
func (r *Reply) End() error {
	if r.err == nil && len(r.data) > 0 {
		return fmt.Errorf("%d bytes of the reply are left", len(r.data))
	}
	return r.err
}

// Send sends a call and returns its results.
func (c *Client) Send(call []byte) (*Reply, error) {
	data, err := c.Do(call)
	if err != nil {
		return nil, err
	}
	r := &Reply{data: data}
	xid, kind, denied := r.U32(), r.U32(), r.U32()
	if xid != binary.BigEndian.Uint32(call) || kind != 1 {
		return nil, fmt.Errorf("the answer is to another call: number %d, kind %d", xid, kind)
	}
	if denied != 0 {
		return nil, fmt.Errorf("the call was denied: %x", r.data)
	}
	r.U32()
	r.Bytes()
	if accepted := r.U32(); accepted != 0 {
		return nil, fmt.Errorf("the call was not accepted: %d", accepted)
	}
	return r, r.err
}

// NFS calls a procedure and returns its status and what follows.
func (c *Client) NFS(procedure uint32, args Args) (status uint32, r *Reply, err error) {
	r, err = c.Send(c.Call(NFS, procedure, args))
	if err != nil {
		return 0, nil, err
	}
	return r.U32(), r, r.err
}

// Root mounts an export and returns the handle of its root.
func (c *Client) Root(export string) ([]byte, error) {
	r, err := c.Send(c.Call(Mount, 1, Args{}.Bytes([]byte(export))))
	if err != nil {
		return nil, err
	}
	if status := r.U32(); status != 0 {
		return nil, fmt.Errorf("mount: status %d", status)
	}
	return r.Bytes(), r.err
}

// Attributes of a file.
type Attributes struct {
	Type, Mode, Links, UID, GID uint32
	Size, ID                    uint64
	FileSystem                  uint64
}

// Attributes takes those of a file.
func (r *Reply) Attributes() (a Attributes) {
	a = Attributes{Type: r.U32(), Mode: r.U32(), Links: r.U32(), UID: r.U32(), GID: r.U32(), Size: r.U64()}
	r.U64()
	r.U64()
	a.FileSystem, a.ID = r.U64(), r.U64()
	r.Fixed(24)
	return a
}

// After takes attributes that may be missing.
func (r *Reply) After() Attributes {
	if r.U32() == 0 {
		return Attributes{}
	}
	return r.Attributes()
}

// WCC takes what is said of a file that was changed.
func (r *Reply) WCC() Attributes {
	if r.U32() != 0 {
		r.Fixed(24)
	}
	return r.After()
}
