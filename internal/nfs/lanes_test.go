package nfs_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/nfs"
	"github.com/nearmetal/nearmetal/internal/nfs/nfstest"
	"github.com/nearmetal/nearmetal/internal/patience/patiencetest"
)

// hanging is a server of a home and of two volumes, of which one stops answering.
type hanging struct {
	*nfs.Server
	disk       *patiencetest.Disk
	home       *client
	root, file []byte // of the volume that stops answering
	other      []byte // the root of the other one
	workers    int
}

func serveHanging(t *testing.T, patience time.Duration) *hanging {
	t.Helper()
	h := &hanging{disk: patiencetest.Mount(t), workers: 3}
	good := t.TempDir()
	if err := os.Chmod(good, 0o777); err != nil {
		t.Fatal(err)
	}
	cfg := nfs.Config{Workers: h.workers, Patience: patience, Descriptors: "/proc/self/fd", Trees: []nfs.Tree{
		{Export: nfs.Home, Root: openTree(t, home(t), false)}, {Export: "/volumes/far", Root: openTree(t, h.disk.Dir, false)}, {Export: "/volumes/near", Root: openTree(t, good, false)},
	}}
	var err error
	if h.Server, err = nfs.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go h.Run(ctx)
	t.Cleanup(cancel)
	h.home = &client{t: t, Client: nfstest.Client{UID: 1000, GID: 1000}}
	h.home.Do = func(call []byte) ([]byte, error) { return <-h.send(t, call), nil }
	if h.home.root, err = h.home.Root(nfs.Home); err != nil {
		t.Fatal(err)
	}
	h.root, h.other = rootOf(t, h.home, "/volumes/far"), rootOf(t, h.home, "/volumes/near")
	var status uint32
	if h.file, status = h.home.lookup(h.root, "file"); status != ok {
		t.Fatalf("LOOKUP: status %d", status)
	}
	t.Cleanup(h.disk.Speak) // before its workers end
	return h
}

// send sends a call and returns where its reply comes.
func (h *hanging) send(t *testing.T, call []byte) <-chan []byte {
	t.Helper()
	replies := make(chan []byte, 1)
	if err := h.Serve(t.Context(), call, func(b []byte) { replies <- b }); err != nil {
		t.Fatal(err)
	}
	return replies
}

// begin sends a call about the volume's file until it has a thread, which may take a moment to be ready.
func (h *hanging) begin(t *testing.T) (call []byte, reply <-chan []byte) {
	t.Helper()
	for {
		call = h.home.Call(nfstest.NFS, nfstest.GetAttr, nfstest.Args{}.Bytes(h.file))
		reply = h.send(t, call)
		select {
		case <-reply: // refused
		default:
			return call, reply
		}
	}
}

// hang has the volume stop answering, and as many calls about it under way as there are threads.
func (h *hanging) hang(t *testing.T) (last []byte, replies []<-chan []byte) {
	t.Helper()
	h.disk.Silence()
	for n := range h.workers {
		call, reply := h.begin(t)
		last, replies = call, append(replies, reply)
		h.disk.Await(n + 1)
	}
	return last, replies
}

// status reads that of a reply.
func status(t *testing.T, reply []byte) uint32 {
	t.Helper()
	c := &nfstest.Client{Do: func([]byte) ([]byte, error) { return reply, nil }}
	r, err := c.Send(reply[:4])
	if err != nil {
		t.Fatal(err)
	}
	return r.U32()
}

func TestATreeThatDoesNotAnswerStopsNoOther(t *testing.T) {
	h := serveHanging(t, time.Millisecond)
	_, hung := h.hang(t)
	h.disk.Deny() // what touches it now gets another error
	for procedure, args := range map[uint32]nfstest.Args{
		nfstest.GetAttr: nfstest.Args{}.Bytes(h.root), nfstest.Lookup: at(h.root, "file"), nfstest.Read: nfstest.Args{}.Bytes(h.file).U64(0).U32(10),
		nfstest.Create: append(at(h.root, "new").U32(1), withMode(0o644)...), nfstest.Rename: append(at(h.root, "file"), at(h.root, "new")...),
		nfstest.Link: append(nfstest.Args{}.Bytes(h.file), at(h.root, "new")...), nfstest.FSStat: nfstest.Args{}.Bytes(h.root),
		nfstest.ReadDirPlus: nfstest.Args{}.Bytes(h.root).U64(0).U64(0).U32(8192, 8192),
	} {
		got, reply := h.home.call(procedure, args)
		if got != later {
			t.Errorf("procedure %d on the tree that does not answer: status %d, want %d", procedure, got, later)
		}
		switch procedure { // what follows the status where a call fails
		case nfstest.Lookup, nfstest.Read, nfstest.FSStat, nfstest.ReadDirPlus:
			reply.After()
		case nfstest.Create:
			reply.WCC()
		case nfstest.Rename:
			reply.WCC()
			reply.WCC()
		case nfstest.Link:
			reply.After()
			reply.WCC()
		}
		h.home.end(reply)
	}
	for what, root := range map[string][]byte{"the home": h.home.root, "another volume": h.other} {
		f := h.home.create(root, "f", 0o644)
		h.home.write(f, 0, []byte(what), 2)
		if got, data, _ := h.home.read(f, 0, 100); got != ok || string(data) != what {
			t.Errorf("meanwhile %s reads %q, status %d", what, data, got)
		}
	}
	if got, err := h.home.Root("/volumes/far"); err != nil || string(got) != string(h.root) {
		t.Errorf("MOUNT of the tree that does not answer: %x, %v", got, err)
	}
	h.disk.Speak()
	for _, replies := range hung {
		if got := status(t, <-replies); got != ok {
			t.Errorf("once it answers, a call that waited gets status %d", got)
		}
	}
	if got, data, _ := h.home.read(h.file, 0, 100); got != ok || string(data) != patiencetest.Content {
		t.Errorf("afterwards its file reads %q, status %d", data, got)
	}
}

// TestACallThatIsUnderWayIsNeitherRefusedNorServedTwice: its client would take a refusal for the end of what goes on.
func TestACallThatIsUnderWayIsNeitherRefusedNorServedTwice(t *testing.T) {
	h := serveHanging(t, time.Millisecond)
	call, replies := h.hang(t)
	var latest <-chan []byte
	for range 3 {
		latest = h.send(t, call)
		select {
		case b := <-latest:
			t.Fatalf("it is answered with status %d while it is under way", status(t, b))
		default:
		}
	}
	h.disk.Speak()
	select {
	case b := <-latest:
		if got := status(t, b); got != ok {
			t.Errorf("the call that was sent again gets status %d", got)
		}
	case b := <-replies[len(replies)-1]:
		t.Errorf("its first sending is answered: %x", b)
	}
}

// TestAServerBeginsWithATreeThatDoesNotAnswer as the server of a home does that ended while the node of a volume is away: it asks nothing of the tree.
func TestAServerBeginsWithATreeThatDoesNotAnswer(t *testing.T) {
	disk := patiencetest.Mount(t)
	tree := openTree(t, disk.Dir, false)
	disk.Deny()
	c := serve(t, home(t), nfs.Config{Trees: []nfs.Tree{{Export: "/volumes/far", Root: tree}}})(1000)
	c.create(c.root, "f", 0o644)
	if _, err := c.Root("/volumes/far"); err != nil {
		t.Error(err)
	}
}

// TestAHangingSearchKeepsNobodyElseFromSearching has two trees look for files that are not known.
func TestAHangingSearchKeepsNobodyElseFromSearching(t *testing.T) {
	dir := home(t)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	before := serve(t, dir, nfs.Config{})(1000)
	known, _ := before.lookup(before.root, "file")
	disk := patiencetest.Mount(t)
	tree := openTree(t, disk.Dir, false)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := nfs.New(nfs.Config{Descriptors: "/proc/self/fd", Trees: []nfs.Tree{{Export: nfs.Home, Root: openTree(t, dir, false)}, {Export: "/volumes/far", Root: tree}}})
	if err != nil {
		t.Fatal(err)
	}
	go s.Run(ctx)
	t.Cleanup(disk.Speak)
	h := &hanging{Server: s, home: &client{t: t, Client: nfstest.Client{UID: 1000, GID: 1000}}}
	h.home.Do = func(call []byte) ([]byte, error) { return <-h.send(t, call), nil }
	far := rootOf(t, h.home, "/volumes/far")
	disk.Silence()
	unknown := append(far[:12:12], nfstest.Args{}.U64(2).U64(0)...)
	h.send(t, h.home.Call(nfstest.NFS, nfstest.GetAttr, nfstest.Args{}.Bytes(unknown)))
	disk.Await(1)
	if _, status := h.home.attributes(known); status != ok {
		t.Errorf("a file of another tree that has to be looked for: status %d", status)
	}
}
