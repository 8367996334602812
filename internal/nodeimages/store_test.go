package nodeimages_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

func TestAnImageIsFetchedVerifiedAndFoundAgain(t *testing.T) {
	s := newSite(t)
	root, layer := s.root(1, 5*image.ChunkBytes+123), s.root(2, 1000)
	w := s.image("one", root, layer)
	n := s.node(t)
	if ok, why := n.Whole(string(w.Digest)); ok || !strings.Contains(why, "is not on this node") {
		t.Errorf("before: %v, %q", ok, why)
	}
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.whole(w)
	check := func(n *node) {
		t.Helper()
		img, err := n.Image(string(w.Digest))
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range []image.Root{root, layer} {
			data, err := os.ReadFile(img.Layers[i].Path)
			if err != nil || image.DigestOf(data) != r.Digest || img.Layers[i].Format != image.EROFS {
				t.Errorf("layer %d is not what was built: %v", i, err)
			}
		}
	}
	check(n)
	n.stop()
	asked := s.asked.Load()
	check(s.nodeAt(t, n.dir))
	if s.asked.Load() != asked {
		t.Error("a store that was opened again asked the server for what it has")
	}
}

func TestAMachineFetchesTheOwnLayerOfAnImageAlone(t *testing.T) {
	s := newSite(t)
	root, layer := s.root(1, 2*image.ChunkBytes), s.root(2, 1000)
	w := s.image("one", root, layer)
	n := s.node(t, func(c *nodeimages.Config) { c.LayersOnly = true })
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.whole(w)
	img, err := n.Image(string(w.Digest))
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(img.Layers[0].Path); err != nil || len(img.Layers) != 1 || image.DigestOf(data) != layer.Digest {
		t.Errorf("it has %+v (%v), want the layer alone", img.Layers, err)
	}
	if sent := s.sent.Load(); sent >= image.ChunkBytes {
		t.Errorf("%d bytes were fetched for a layer of 1000", sent)
	}
	n.stop()
	if ok, why := s.nodeAt(t, n.dir, func(c *nodeimages.Config) { c.LayersOnly = true }).Whole(string(w.Digest)); !ok {
		t.Errorf("a store that was opened again says: %s", why)
	}
}

func TestKernelsAreFetchedWhereVirtualMachinesBootAndOfImagesForThem(t *testing.T) {
	s := newSite(t)
	kernel, initrd := s.keep([]byte("a kernel")), s.keep([]byte("an initial RAM disk"))
	metal := &image.Metal{Kernel: kernel, Initrd: initrd, Arguments: "console=ttyS0"}
	boots := s.manifest(image.Manifest{Root: s.root(1, 1000), Metal: metal, Stacks: []api.Stack{api.StackVM}})
	metalOnly := s.manifest(image.Manifest{Root: s.root(2, 1000), Metal: metal, Stacks: []api.Stack{api.StackMetal}})
	kernels := func(c *nodeimages.Config) { c.Kernels = true }
	n := s.node(t)
	n.Want(s.public(), []nodeimages.Wanted{boots})
	n.whole(boots)
	if got, err := n.Image(string(boots.Digest)); err != nil || got.Kernel != nil {
		t.Errorf("on a node for containers: %+v, %v; want no kernel", got.Kernel, err)
	}
	n.stop()
	n = s.nodeAt(t, n.dir, kernels) // which carries virtual machines from now on
	n.Want(s.public(), []nodeimages.Wanted{boots, metalOnly})
	n.whole(boots)
	n.whole(metalOnly)
	got, err := n.Image(string(boots.Digest))
	if err != nil || got.Kernel == nil || got.Kernel.Arguments != "console=ttyS0" {
		t.Fatalf("on a node for virtual machines: %+v, %v", got.Kernel, err)
	}
	for path, want := range map[string]string{got.Kernel.Path: "a kernel", got.Kernel.Initrd: "an initial RAM disk"} {
		if text, err := os.ReadFile(path); string(text) != want {
			t.Errorf("got %q, %v; want %q", text, err, want)
		}
	}
	if got, err := n.Image(string(metalOnly.Digest)); err != nil || got.Kernel != nil {
		t.Errorf("of an image for machines only: %+v, %v; want no kernel", got.Kernel, err)
	}
	huge := s.manifest(image.Manifest{
		Root: s.root(3, 1000), Stacks: []api.Stack{api.StackVM},
		Metal: &image.Metal{Kernel: image.Blob{Digest: kernel.Digest, SizeBytes: 1 << 40}, Initrd: initrd},
	})
	n.Want(s.public(), []nodeimages.Wanted{huge})
	if why := n.failure(huge); !strings.Contains(why, "at most 512 MiB are allowed") {
		t.Errorf("a kernel of a TiB: %s", why)
	}
}

func TestAnImageThatIsNotOfThisSiteIsRefused(t *testing.T) {
	s := newSite(t)
	w := s.image("one", s.root(1, 1000))
	cases := []struct {
		name string
		want string
		key  []byte
		w    nodeimages.Wanted
	}{
		{"no key", "the server has not sent the key", nil, w},
		{"another key", "not signed by this site", bytes.Repeat([]byte{1}, ed25519.PublicKeySize), w},
		{"another signature", "not signed by this site", s.public(), nodeimages.Wanted{Digest: w.Digest, Signature: make([]byte, ed25519.SignatureSize)}},
		{"no digest", "is not a digest", s.public(), nodeimages.Wanted{Digest: "sha256:../../x", Signature: w.Signature}},
		{"unknown", "the content is not there", s.public(), nodeimages.Wanted{Digest: image.DigestOf([]byte("unknown")), Signature: w.Signature}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n := s.node(t)
			n.Want(c.key, []nodeimages.Wanted{c.w})
			if got := n.failure(c.w); !strings.Contains(got, c.want) {
				t.Errorf("it says %q, want %q", got, c.want)
			}
		})
	}
}

func TestWhatTheServerTamperedWithIsRefused(t *testing.T) {
	s := newSite(t)
	root := s.root(1, 3*image.ChunkBytes)
	w := s.image("one", root)
	bad := bytes.Clone(s.blobs[root.Digest.Hex()])
	bad[image.ChunkBytes+5] ^= 1
	s.blobs[root.Digest.Hex()] = bad
	n := s.node(t)
	n.Want(s.public(), []nodeimages.Wanted{w})
	if got := n.failure(w); !strings.Contains(got, "digest mismatch") {
		t.Errorf("it says %q, want a digest mismatch", got)
	}
	if _, err := n.Image(string(w.Digest)); err == nil {
		t.Error("a tampered image can be used")
	}
}

func TestAFetchThatWasInterruptedGoesOnWhereItWas(t *testing.T) {
	s := newSite(t)
	const chunks = 64
	root := s.root(1, chunks*image.ChunkBytes)
	w := s.image("one", root)
	// The server dies once half of the root is here.
	dead := make(chan struct{})
	die := sync.OnceFunc(func() { close(dead) })
	t.Cleanup(die)
	s.meddle = func(_ http.ResponseWriter, r *http.Request) bool {
		var begin int64
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &begin); err != nil || begin < chunks*image.ChunkBytes/2 {
			return false
		}
		select {
		case <-dead:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	n := s.node(t)
	n.Want(s.public(), []nodeimages.Wanted{w})
	n.until(w, "half there", func(st nodeimages.Status) bool { return st.HeldBytes == chunks*image.ChunkBytes/2 })
	die()
	n.failure(w)
	n.stop()
	before := s.sent.Load()
	// One chunk of what is on disk rots meanwhile.
	part := filepath.Join(n.dir, "partial", root.Digest.Hex())
	f, err := os.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("rot"), 100); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	s.mu.Lock()
	s.meddle = nil
	s.mu.Unlock()
	again := s.nodeAt(t, n.dir)
	again.Want(s.public(), []nodeimages.Wanted{w})
	again.whole(w)
	// The rotten chunk comes again, and so does the list of chunks, which is far smaller than one.
	if more := s.sent.Load() - before; more > chunks*image.ChunkBytes-before+2*image.ChunkBytes {
		t.Errorf("after a restart %d bytes were fetched, with %d of %d here", more, before, chunks*image.ChunkBytes)
	}
}

func TestAnImageThatDoesNotFitIsRefusedWithTheNumbersAndFitsOnceThereIsRoom(t *testing.T) {
	needs.Root(t, "mounts a small file system")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := newSite(t)
	n := s.nodeAt(t, filepath.Join(dir, "images"))
	big, small := s.image("big", s.root(1, 9<<20)), s.image("small", s.root(2, 5<<20))
	n.Want(s.public(), []nodeimages.Wanted{big})
	if got := n.failure(big); !strings.Contains(got, "it needs 9 MiB more") || !strings.Contains(got, "free space there") {
		t.Errorf("it says %q", got)
	}
	n.Want(s.public(), []nodeimages.Wanted{small})
	n.whole(small)
	// What is not wanted any more makes room for what is.
	other := s.image("other", s.root(3, 5<<20))
	n.Want(s.public(), []nodeimages.Wanted{other})
	n.whole(other)
	if ok, _ := n.Whole(string(small.Digest)); ok {
		t.Error("the image that nothing needs was not dropped for the one that is wanted")
	}
	n.stop()
}

func TestADiskThatFillsMeanwhileEndsTheFetchWithThatReason(t *testing.T) {
	needs.Root(t, "mounts a small file system")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := newSite(t)
	w := s.image("one", s.root(1, 5<<20))
	var once sync.Once
	s.meddle = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") != "" {
			once.Do(func() { _ = os.WriteFile(filepath.Join(dir, "other"), make([]byte, 6<<20), 0o644) })
		}
		return false
	}
	n := s.nodeAt(t, filepath.Join(dir, "images"))
	n.Want(s.public(), []nodeimages.Wanted{w})
	if got := n.failure(w); !strings.Contains(got, "no space left on device") && !strings.Contains(got, "free space there") {
		t.Errorf("it says %q", got)
	}
	n.stop()
}

func TestImagesThatNothingNeedsAreKeptUpToANumberAndNothingElseIsLeft(t *testing.T) {
	s := newSite(t)
	shared := s.root(9, 1000)
	n := s.node(t, func(c *nodeimages.Config) { c.Keep = 1 })
	var all []nodeimages.Wanted
	for i := range 3 {
		w := s.image(fmt.Sprint("image", i), s.root(uint64(i), 100_000), shared)
		all = append(all, w)
		n.Want(s.public(), []nodeimages.Wanted{w})
		n.whole(w)
		// The kernel's clock for files may stand still meanwhile.
		wanted := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(filepath.Join(n.dir, "whole", w.Digest.Hex()), wanted, wanted); err != nil {
			t.Fatal(err)
		}
	}
	n.Want(s.public(), nil)
	n.stop()
	n = s.nodeAt(t, n.dir)
	n.Want(s.public(), []nodeimages.Wanted{all[2]})
	n.whole(all[2])
	if !n.eventually(func() bool { ok, _ := n.Whole(string(all[0].Digest)); return !ok }) {
		t.Error("of two images that nothing needs, both were kept, want one")
	}
	n.stop()
	n = s.nodeAt(t, n.dir, func(c *nodeimages.Config) { c.Keep = 0 })
	gone := s.image("gone", s.root(20, 1000))
	n.Want(s.public(), []nodeimages.Wanted{gone})
	n.whole(gone)
	var left []os.DirEntry
	only := n.eventually(func() bool {
		left, _ = os.ReadDir(filepath.Join(n.dir, "blobs"))
		return len(left) == 3
	})
	if !only { // manifest, chunk list and root of the last one
		t.Errorf("%d blobs are left, want 3", len(left))
	}
	n.stop()
	if entries, _ := os.ReadDir(filepath.Join(n.dir, "partial")); len(entries) > 0 {
		t.Errorf("partial files are left: %v", entries)
	}
}

func TestTheImageAMachineWasBootedFromNeedsNoFetch(t *testing.T) {
	s := newSite(t)
	root, layer := s.root(1, 3*image.ChunkBytes), s.root(2, 1000)
	w := s.image("one", root, layer)
	booted := t.TempDir()
	for name, d := range map[string]image.Digest{
		"manifest.json": w.Digest, "root": root.Digest, "chunks": root.Chunks.Digest, "root.1": layer.Digest, "chunks.1": layer.Chunks.Digest,
	} {
		content := s.blobs[d.Hex()]
		if strings.HasPrefix(name, "root") {
			content = append(bytes.Clone(content), make([]byte, 512)...) // padded to whole blocks
		}
		if err := os.WriteFile(filepath.Join(booted, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n := s.node(t, func(c *nodeimages.Config) { c.Booted = booted }).serve(nodeimages.PeerConfig{})
	if _, err := n.Image(string(w.Digest)); err == nil {
		t.Error("it can be used before it is whole")
	}
	if st := n.Status(); len(st) != 0 {
		t.Errorf("before it is whole others are told of %+v", st)
	}
	after := s.image("after", s.root(3, 1000))
	n.Want(s.public(), []nodeimages.Wanted{w, after})
	n.whole(after) // it waits for no image that the boot agent is about to have
	if sent := s.sent.Swap(0); sent > 1000 {
		t.Errorf("%d bytes were fetched beside the boot agent", sent)
	}
	if err := os.WriteFile(filepath.Join(booted, "whole"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.whole(w) // which others, who may read it here, are told
	if st := n.Status(); len(st) != 2 {
		t.Errorf("one of two is told of more than once: %+v", st)
	}
	if s.sent.Load() > 0 {
		t.Error("what the machine was booted from was fetched")
	}
	other := s.node(t, func(c *nodeimages.Config) { c.Server = "http://127.0.0.1:1/" })
	w.Peers = []string{n.url}
	other.Want(s.public(), []nodeimages.Wanted{w})
	other.whole(w)
}
