package nodeimages_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

// BenchmarkSpreadOfAFile measures how long it takes until N nodes have a file that one of them has, over links of 100 Mbit/s.
func BenchmarkSpreadOfAFile(b *testing.B) {
	for _, nodes := range []int{1, 8, 16, 50} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				spreadFile(b, nodes)
			}
		})
	}
}

// sharedFile makes a file with its chunk list.
func sharedFile(tb testing.TB, size int) nodeimages.File {
	tb.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(content)
	blob, list, err := image.MakeChunks(bytes.NewReader(content))
	if err != nil {
		tb.Fatal(err)
	}
	f := nodeimages.File{
		Root: image.Root{Blob: blob, ChunkBytes: image.ChunkBytes, Chunks: image.Blob{Digest: image.DigestOf(list), SizeBytes: int64(len(list))}},
		Path: filepath.Join(tb.TempDir(), "file"), List: filepath.Join(tb.TempDir(), "list"),
	}
	if err := os.WriteFile(f.Path, content, 0o644); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(f.List, list, 0o644); err != nil {
		tb.Fatal(err)
	}
	return f
}

func spreadFile(b *testing.B, count int) {
	w := newWires(b)
	s := newSite(b)
	file := sharedFile(b, spreadSize)
	nodes, urls := make([]*node, count+1), make([]string, count+1)
	for i := range nodes {
		space, address := w.machine(linkMegabits)
		nodes[i] = s.node(b, func(c *nodeimages.Config) { c.Client, c.Peers = clientIn(space), clientIn(space) })
		nodes[i].serveAt(listenIn(b, space, address), nodeimages.PeerConfig{})
		urls[i] = nodes[i].url
	}
	nodes[0].ShareFiles([]nodeimages.File{file})
	began := time.Now()
	var fetching sync.WaitGroup
	times := make([]float64, count)
	for i, n := range nodes[1:] {
		fetching.Go(func() {
			// Eight peers, as the leader names them.
			var peers []string
			for k := range min(8, count) {
				peers = append(peers, urls[(i+k*7)%(count+1)])
			}
			peers = slices.DeleteFunc(append(peers, urls[0]), func(url string) bool { return url == n.url })
			mine := nodeimages.File{Root: file.Root, Path: filepath.Join(b.TempDir(), fmt.Sprint("f", i))}
			if err := n.FetchFile(b.Context(), mine, peers, func(int64) {}); err != nil {
				b.Error(err)
			}
			times[i] = time.Since(began).Seconds()
		})
	}
	fetching.Wait()
	b.ReportMetric(slices.Max(times), "s/last")
	b.ReportMetric(slices.Max(times)/(float64(spreadSize)/linkBytes), "x-one-copy")
	for _, n := range nodes {
		n.stop()
	}
}

func TestAFileIsTakenFromNodesThatShareIt(t *testing.T) {
	s := newSite(t)
	file := sharedFile(t, 3<<20+5)
	one, two := s.node(t), s.node(t)
	one.serve(nodeimages.PeerConfig{})
	to := nodeimages.File{Root: file.Root, Path: filepath.Join(t.TempDir(), "got")}
	one.ShareFiles([]nodeimages.File{file})
	var came int64
	if err := two.FetchFile(t.Context(), to, []string{one.url}, func(n int64) { came += n }); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(to.Path)
	if sum := sha256.Sum256(got); err != nil || fmt.Sprintf("sha256:%x", sum) != string(file.Root.Digest) || came != file.Root.SizeBytes {
		t.Errorf("%d bytes came (%v), want the file of %d", came, err, file.Root.SizeBytes)
	}
	one.ShareFiles(nil)
	if err := two.FetchFile(t.Context(), nodeimages.File{Root: file.Root, Path: to.Path + "2"}, nil, func(int64) {}); err == nil {
		t.Error("a file that no peer has was fetched")
	}
}
