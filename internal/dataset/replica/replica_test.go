package replica

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

const fileBytes = 2<<20 + 9

// source serves files, and lies about those that a test says.
type source struct {
	*httptest.Server
	mu   sync.Mutex
	lies map[string]bool
	sent atomic.Int64
	held chan struct{} // not nil: answers wait for it
}

func newSource(t *testing.T) *source {
	t.Helper()
	s := &source{lies: map[string]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		content, held := contentOf(r.URL.Path), s.held
		if s.lies[r.URL.Path] {
			content[len(content)-1] ^= 1
		}
		s.mu.Unlock()
		if held != nil {
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}
		s.sent.Add(int64(len(content)))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *source) lie(path string, lies bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lies[path] = lies
}

func contentOf(path string) []byte {
	content := make([]byte, fileBytes)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(path))).Read(content)
	return content
}

// wanted is a dataset of some files that a node should keep.
func (s *source) wanted(uid string, paths ...string) dataset.Wanted {
	w := dataset.Wanted{UID: uid, Name: uid, Keep: true}
	for _, p := range paths {
		sum := sha256.Sum256(contentOf("/" + p))
		w.Files = append(w.Files, api.DatasetFile{Path: p, URLs: []string{s.URL + "/" + p}, SizeBytes: fileBytes, SHA256: hex.EncodeToString(sum[:])})
	}
	return w
}

// node is a store that runs.
type node struct {
	*Store
	t    *testing.T
	stop func()
}

func start(t *testing.T, dir string, change func(*Config)) *node {
	t.Helper()
	cfg := Config{Dir: dir, Fetcher: transfer.New(transfer.Config{Allow: func(netip.Addr) error { return nil }, Patience: 5 * time.Second})}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	n := &node{Store: s, t: t, stop: sync.OnceFunc(func() { cancel(); running.Wait() })}
	t.Cleanup(n.stop)
	return n
}

// eventually waits until something is so.
func (n *node) eventually(what string, is func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); {
		select {
		case <-n.t.Context().Done():
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: not within 30 s; states: %+v", what, n.States())
		}
	}
}

func (n *node) ready(uid string) bool { ok, _ := n.Ready(uid); return ok }

func (n *node) state(uid string) dataset.State {
	for _, s := range n.States() {
		if s.UID == uid {
			return s
		}
	}
	return dataset.State{}
}

func (n *node) onDisk(uid string) bool {
	_, err := os.Stat(filepath.Join(n.cfg.Dir, uid))
	return err == nil
}

func (n *node) holds(w dataset.Wanted) {
	n.t.Helper()
	for _, f := range w.Files {
		got, err := os.ReadFile(filepath.Join(n.Place(w.UID), f.Path))
		if err != nil || !bytes.Equal(got, contentOf("/"+f.Path)) {
			n.t.Errorf("%s has %d bytes (%v), want the content of the source", f.Path, len(got), err)
		}
	}
}

func TestADatasetIsShownOnceAllFilesAreVerified(t *testing.T) {
	s := newSource(t)
	w := s.wanted("d1", "a.root", "2016/b.root", "2016/c.root")
	s.lie("/2016/c.root", true)
	n := start(t, t.TempDir(), nil)
	n.Want([]dataset.Wanted{w})
	n.eventually("the wrong checksum is told", func() bool { return strings.Contains(n.state("d1").Message, "SHA-256") })
	if ok, why := n.Ready("d1"); ok || !strings.Contains(why, "c.root") {
		t.Errorf("a dataset with a wrong file is ready: %t, %q", ok, why)
	}
	if _, err := os.Stat(filepath.Join(n.Place("d1"), "2016/c.root")); !os.IsNotExist(err) {
		t.Errorf("the wrong file is among those of the dataset: %v", err)
	}
	s.lie("/2016/c.root", false)
	n.eventually("the dataset is ready", func() bool { return n.ready("d1") })
	n.holds(w)
	if got := n.state("d1"); !got.Whole || got.HeldBytes != 3*fileBytes || got.Failed || got.Message != "" {
		t.Errorf("state %+v, want it whole", got)
	}
	n.stop()
	sent := s.sent.Load()
	again := start(t, n.cfg.Dir, nil)
	again.Want([]dataset.Wanted{w})
	if !again.ready("d1") || s.sent.Load() != sent {
		t.Error("after a restart the dataset is not there, or was fetched again")
	}
}

func TestWhatIsInUseIsNotRemoved(t *testing.T) {
	s := newSource(t)
	n := start(t, t.TempDir(), nil)
	w := s.wanted("d1", "a.root")
	n.Want([]dataset.Wanted{w})
	n.eventually("the dataset is ready", func() bool { return n.ready("d1") })
	n.Use(map[string]bool{"d1": true})
	evicted := dataset.Wanted{UID: "d1", Evictions: 1}
	purged := dataset.Wanted{UID: "d1", Purge: true}
	for _, wanted := range []dataset.Wanted{evicted, purged} {
		n.Want([]dataset.Wanted{wanted})
		n.dismiss(t.Context())
		if !n.ready("d1") {
			t.Errorf("a dataset that members have is gone after %+v", wanted)
		}
		n.holds(w)
	}
	n.Want([]dataset.Wanted{evicted})
	n.Use(nil)
	n.eventually("the replica is removed", func() bool { return !n.onDisk("d1") })
	n.Want([]dataset.Wanted{{UID: "d1", Name: "d1", Keep: true, Evictions: 1, Files: w.Files}})
	n.eventually("a replica that is wanted again is made again", func() bool { return n.ready("d1") })
	n.Want([]dataset.Wanted{purged})
	n.eventually("a deleted dataset is removed", func() bool { return !n.onDisk("d1") && len(n.States()) == 0 })
}

func TestTheLongestUnusedGoesFirst(t *testing.T) {
	s := newSource(t)
	n := start(t, t.TempDir(), func(c *Config) { c.MaxBytes = 3*fileBytes + 100 })
	for _, uid := range []string{"d1", "d2", "d3"} {
		w := s.wanted(uid, uid)
		n.Want([]dataset.Wanted{w})
		n.eventually(uid+" is ready", func() bool { return n.ready(uid) })
		n.Use(map[string]bool{uid: true})
		n.Use(nil)
	}
	n.Use(map[string]bool{"d1": true}) // it is used again
	n.Use(nil)
	n.Want([]dataset.Wanted{s.wanted("d4", "d4")})
	n.eventually("d4 is ready", func() bool { return n.ready("d4") })
	if n.onDisk("d2") || !n.onDisk("d1") || !n.onDisk("d3") {
		t.Errorf("d1 %t, d2 %t, d3 %t; want d2 removed, which was unused for the longest time", n.onDisk("d1"), n.onDisk("d2"), n.onDisk("d3"))
	}
	// What is kept or in use makes no room.
	n.Use(map[string]bool{"d1": true, "d3": true})
	kept := s.wanted("d4", "d4")
	n.Want([]dataset.Wanted{kept, s.wanted("d5", "d5")})
	n.eventually("that there is no room is told", func() bool { return strings.Contains(n.state("d5").Message, "--dataset-size") })
	if !n.ready("d1") || !n.ready("d3") || !n.ready("d4") || n.ready("d5") {
		t.Error("a dataset that is kept or in use made room for another")
	}
	n.Use(nil)
	n.eventually("d5 is ready once there is room", func() bool { return n.ready("d5") })
}

func TestAReplicaThatChangedOnTheDiskIsFetchedAgain(t *testing.T) {
	s := newSource(t)
	n := start(t, t.TempDir(), nil)
	w := s.wanted("d1", "a", "b")
	n.Want([]dataset.Wanted{w})
	n.eventually("the dataset is ready", func() bool { return n.ready("d1") })
	w.Checks = 1
	n.Want([]dataset.Wanted{w})
	n.eventually("the check is passed", func() bool { return n.state("d1").Checked == 1 })
	flip(t, filepath.Join(n.Place("d1"), "b"))
	held := make(chan struct{})
	s.mu.Lock()
	s.held = held
	s.mu.Unlock()
	w.Checks = 2
	n.Want([]dataset.Wanted{w})
	n.eventually("the wrong file is removed", func() bool {
		_, err := os.Stat(filepath.Join(n.Place("d1"), "b"))
		return os.IsNotExist(err)
	})
	if n.ready("d1") {
		t.Error("a replica with a wrong file is given to new members")
	}
	close(held)
	n.eventually("the replica is whole again", func() bool { return n.ready("d1") && n.state("d1").Checked == 2 })
	n.holds(w)
}

func flip(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		data[7] ^= 1
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestBeforeTheLeaderIsHeardNothingGoes(t *testing.T) {
	s := newSource(t)
	n := start(t, t.TempDir(), nil)
	n.Want([]dataset.Wanted{s.wanted("d1", "a")})
	n.eventually("the dataset is ready", func() bool { return n.ready("d1") })
	n.stop()
	part := filepath.Join(n.cfg.Dir, "d2", dirFetch, "0.part") // of a transfer that was killed
	if err := errors.Join(os.MkdirAll(filepath.Dir(part), 0o755), os.WriteFile(part, []byte("a part"), 0o644)); err != nil {
		t.Fatal(err)
	}
	again := start(t, n.cfg.Dir, nil)
	again.dismiss(t.Context())
	if _, err := os.Stat(part); err != nil || !again.ready("d1") {
		t.Errorf("a replica or a part of one is gone after a restart, before the leader said anything: %v", err)
	}
	again.Want(nil)
	again.eventually("the part that nobody wants is removed", func() bool { return !again.onDisk("d2") })
}

// peer is a node's store of images with a server for other nodes.
func peer(t *testing.T) (*nodeimages.Store, string) {
	t.Helper()
	images, err := nodeimages.Open(nodeimages.Config{Dir: t.TempDir(), Server: "http://127.0.0.1:1/none/", Client: http.DefaultClient})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := nodeimages.NewPeerServer(images, l, nodeimages.PeerConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(ctx) })
	t.Cleanup(func() { cancel(); serving.Wait() })
	return images, server.URL()
}

func TestNodesTakeADatasetFromEachOther(t *testing.T) {
	s := newSource(t)
	var nodes []*node
	var urls []string
	for range 4 {
		images, url := peer(t)
		nodes, urls = append(nodes, start(t, t.TempDir(), func(c *Config) { c.Peers = images })), append(urls, url)
	}
	w := s.wanted("d1", "a", "b")
	nodes[0].Want([]dataset.Wanted{w})
	nodes[0].eventually("the first node has it", func() bool { return nodes[0].ready("d1") })
	sent := s.sent.Load()
	w.Contents = nodes[0].state("d1").Contents
	if len(w.Contents) != 2 {
		t.Fatalf("the first node names %d contents, want 2", len(w.Contents))
	}
	for i, n := range nodes[1:] {
		mine := w
		mine.Peers = append([]string{urls[0]}, urls[1+(i+1)%3])
		n.Want([]dataset.Wanted{mine})
	}
	for i, n := range nodes[1:] {
		n.eventually(fmt.Sprintf("node %d has it", i+1), func() bool { return n.ready("d1") })
		n.holds(w)
		if got := n.state("d1"); got.FromPeersBytes != 2*fileBytes || got.FromSourceBytes != 0 {
			t.Errorf("node %d has %d bytes from peers and %d from the source, want all from peers", i+1, got.FromPeersBytes, got.FromSourceBytes)
		}
	}
	if s.sent.Load() != sent {
		t.Error("the source was asked though nodes had the dataset")
	}
}

func TestWhatAPeerSaysOfAFileIsNotBelieved(t *testing.T) {
	s := newSource(t)
	liarImages, liarURL := peer(t)
	liar := start(t, t.TempDir(), func(c *Config) { c.Peers = liarImages })
	w := s.wanted("d1", "a")
	other := s.wanted("d1", "b") // another content, of which everything fits together
	liar.Want([]dataset.Wanted{other})
	liar.eventually("the liar has its own", func() bool { return liar.ready("d1") })
	images, _ := peer(t)
	n := start(t, t.TempDir(), func(c *Config) { c.Peers = images })
	w.Contents, w.Peers = liar.state("d1").Contents, []string{liarURL}
	n.Want([]dataset.Wanted{w})
	n.eventually("the dataset is ready", func() bool { return n.ready("d1") })
	n.holds(w)
	if got := n.state("d1"); got.FromSourceBytes != fileBytes {
		t.Errorf("%d bytes came from the source, want the file: the peer's was another", got.FromSourceBytes)
	}
}

func TestAPrivateReplicaIsNotServed(t *testing.T) {
	s := newSource(t)
	images, url := peer(t)
	n := start(t, t.TempDir(), func(c *Config) { c.Peers = images })
	w := s.wanted("d1", "a")
	w.Credential = &api.DatasetCredential{Token: "t"}
	n.Want([]dataset.Wanted{w})
	n.eventually("the dataset is ready", func() bool { return n.ready("d1") })
	if got := n.state("d1"); len(got.Contents) > 0 {
		t.Errorf("the node offers %+v of a private dataset", got.Contents)
	}
	n.mu.Lock()
	contents := n.all["d1"].record.Contents
	n.mu.Unlock()
	otherImages, _ := peer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := otherImages.FetchFile(ctx, nodeimages.File{Root: contents[0].Root(), Path: filepath.Join(t.TempDir(), "f")}, []string{url}, func(int64) {})
	if err == nil {
		t.Error("another node got a private file")
	}
}

func TestANodeThatFailedSaysSoWhileItWaitsForAnother(t *testing.T) {
	s := newSource(t)
	n := start(t, t.TempDir(), nil)
	w := s.wanted("d1", "a")
	s.lie("/a", true)
	n.Want([]dataset.Wanted{w})
	n.eventually("it fails", func() bool { return n.state("d1").Failed })
	w.Wait = true
	n.Want([]dataset.Wanted{w})
	n.eventually("it stands still", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.all["d1"].fetching == nil })
	if got := n.state("d1"); !got.Failed {
		t.Errorf("a node that failed says %+v while it waits, so it would be chosen again before those that have not failed", got)
	}
	s.lie("/a", false)
	w.Wait = false
	n.Want([]dataset.Wanted{w})
	n.eventually("it tries again once it is chosen", func() bool { return n.ready("d1") })
}
