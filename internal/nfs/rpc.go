package nfs

import (
	"bytes"
	"hash/maphash"
	"sync"
)

// Numbers of ONC RPC (RFC 5531) and of the two programs.
const (
	rpcCall, rpcReply = 0, 1
	rpcVersion        = 2
	programNFS        = 100003
	programMount      = 100005
	version3          = 3
	authNone, authSys = 0, 1
	maxAuthBytes      = 400

	acceptSuccess, acceptNoProgram, acceptMismatch, acceptNoProcedure, acceptGarbage = 0, 1, 2, 3, 4
	denyMismatch, denyAuth                                                           = 0, 1
	authBadCredentials                                                               = 1
)

// call is one call that is being served.
type call struct {
	*Server
	header
	thread *thread
	who    credentials
	args   reader
	out    writer
	// tree is that of the files that the call names, nil before the first.
	tree *tree
	// refused: the call touches no file, and gets this error.
	refused error
}

// header is what a call begins with.
type header struct {
	xid, version, program, programVersion, procedure, flavor uint32

	body []byte // of the credentials
}

// parse reads a call up to its arguments; ok is false for what is none.
func (s *Server) parse(data []byte) (c *call, ok bool) {
	c = &call{Server: s, args: reader{data: data}}
	r := &c.args
	xid, kind := r.u32(), r.u32()
	c.header = header{xid: xid, version: r.u32(), program: r.u32(), programVersion: r.u32(), procedure: r.u32(), flavor: r.u32(), body: r.opaque(maxAuthBytes)}
	r.u32() // the verifier, which AUTH_SYS does not use
	r.opaque(maxAuthBytes)
	return c, !r.short && kind == rpcCall
}

// about returns the tree of the first file that a call names, nil where it touches none. No call touches files of two trees (file).
func (c *call) about() *tree {
	if c.program != programNFS || c.programVersion != version3 || c.procedure == 0 {
		return nil
	}
	args := c.args // which stay where they are
	h, _ := parseHandle(args.opaque(maxHandle))
	return c.files.trees[h.tree]
}

// answer serves a call, data, and returns the reply, nil where there is none to be given.
func (c *call) answer(t *thread, data []byte) []byte {
	c.thread = t
	c.out.u32(c.xid)
	c.out.u32(rpcReply)
	if c.version != rpcVersion {
		return c.deny(denyMismatch, rpcVersion, rpcVersion)
	}
	procedures, ok := programs[c.program]
	switch {
	case !ok:
		return c.accept(acceptNoProgram)
	case c.programVersion != version3:
		return c.accept(acceptMismatch, version3, version3)
	case c.procedure >= uint32(len(procedures)):
		return c.accept(acceptNoProcedure)
	case c.procedure == 0: // NULL takes any caller
		return c.accept(acceptSuccess)
	}
	if who, ok := parseCredentials(c.flavor, c.body); !ok || c.refused == nil && t.become(who) != nil {
		return c.deny(denyAuth, authBadCredentials)
	} else {
		c.who = who
	}
	p := procedures[c.procedure]
	if !p.once || c.refused != nil {
		return c.perform(p)
	}
	return c.replies.of(data, func() []byte { return c.perform(p) })
}

// refusal is the reply to a call that is not served now, and is to come again. It touches no file, and is not kept.
func (c *call) refusal() []byte {
	c.refused = statusLater
	return c.answer(nil, nil)
}

// perform does what is called.
func (c *call) perform(p procedure) []byte {
	c.accept(acceptSuccess)
	before := len(c.out.data)
	if p.do(c); c.args.short {
		c.out.data = c.out.data[:before-4]
		c.out.u32(acceptGarbage)
	}
	return c.out.data
}

func (c *call) accept(words ...uint32) []byte {
	c.out.u32(0) // MSG_ACCEPTED
	c.out.u32(authNone)
	c.out.u32(0)
	for _, w := range words {
		c.out.u32(w)
	}
	return c.out.data
}

func (c *call) deny(words ...uint32) []byte {
	c.out.u32(1) // MSG_DENIED
	for _, w := range words {
		c.out.u32(w)
	}
	return c.out.data
}

// parseCredentials reads those of AUTH_SYS. No others are taken: the kernels of guests send these.
func parseCredentials(flavor uint32, body []byte) (credentials, bool) {
	if flavor != authSys {
		return credentials{}, false
	}
	r := reader{data: body}
	r.u32()       // a stamp
	r.opaque(255) // the machine's name, which anybody can say
	c := credentials{uid: r.u32(), gid: r.u32()}
	n := r.u32()
	if n > maxGroups {
		return credentials{}, false
	}
	for range n {
		c.groups = append(c.groups, r.u32())
	}
	return c, !r.short
}

// procedure is one of a program's. once: doing it twice is not the same as doing it once.
type procedure struct {
	do   func(*call)
	once bool
}

func null(*call) {}

var programs = map[uint32][]procedure{
	programNFS: {
		{null, false},
		{(*call).getattr, false},
		{(*call).setattr, true},
		{(*call).lookup, false},
		{(*call).access, false},
		{(*call).readlink, false},
		{(*call).read, false},
		{(*call).write, false},
		{(*call).create, true},
		{(*call).mkdir, true},
		{(*call).symlink, true},
		{(*call).mknod, true},
		{(*call).remove, true},
		{(*call).rmdir, true},
		{(*call).rename, true},
		{(*call).link, true},
		{(*call).readdir, false},
		{(*call).readdirplus, false},
		{(*call).fsstat, false},
		{(*call).fsinfo, false},
		{(*call).pathconf, false},
		{(*call).commit, false},
	},
	// Appendix I. DUMP, UMNTALL and EXPORT have nothing to say.
	programMount: {{null, false}, {(*call).mount, false}, {(*call).nothing, false}, {null, false}, {null, false}, {(*call).nothing, false}},
}

// nothing is an empty list.
func (c *call) nothing() { c.out.boolean(false) }

// mount says where a tree begins. A tree has one name, and nothing below it is mounted by itself.
func (c *call) mount() {
	export := c.args.opaque(maxPath)
	t := c.files.trees[treeNumber(string(export))]
	if t == nil {
		c.status(statusNoEntry)
		return
	}
	c.out.u32(uint32(statusOK))
	c.out.opaque(t.root.bytes())
	c.out.u32(1)
	c.out.u32(authSys)
}

// replies are those of the last calls that must not be served twice: a client whose connection broke sends again what was not answered.
type replies struct {
	mu   sync.Mutex
	seed maphash.Seed
	ring [keptReplies]keptReply
	next int
}

const keptReplies = 256

type keptReply struct {
	call uint64 // the digest of all of it, number and caller included
	size int
	done chan struct{} // closed once there is a reply
	data []byte
}

func newReplies() *replies { return &replies{seed: maphash.MakeSeed()} }

// of returns the reply to a call, made by do unless there is one.
func (r *replies) of(call []byte, do func() []byte) []byte {
	sum := maphash.Bytes(r.seed, call)
	r.mu.Lock()
	for i := range r.ring {
		if k := &r.ring[i]; k.done != nil && k.call == sum && k.size == len(call) {
			done := k.done
			r.mu.Unlock()
			<-done
			return r.kept(i, sum)
		}
	}
	at, done := r.next, make(chan struct{})
	r.ring[at] = keptReply{call: sum, size: len(call), done: done}
	r.next = (r.next + 1) % keptReplies
	r.mu.Unlock()
	data := do()
	r.mu.Lock()
	if k := &r.ring[at]; k.done == done {
		k.data = bytes.Clone(data)
	}
	r.mu.Unlock()
	close(done)
	return data
}

// kept returns a reply that is there, nil where later ones have taken its place: then the client asks again.
func (r *replies) kept(i int, sum uint64) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring[i].call != sum {
		return nil
	}
	return r.ring[i].data
}
