package lazyroot

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/nearmetal/nearmetal/internal/image"
)

// openBounded opens an image of which some chunks are kept, and returns the file that keeps them.
func openBounded(t *testing.T, data []byte, chunks int, server string) (*Image, *os.File) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "kept"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return open(t, data, func(c *Config) { c.LimitBytes, c.Backing = int64(chunks)*image.ChunkBytes, File{file} }, server), file
}

func onDisk(t *testing.T, file *os.File) int64 {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(file.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks * 512
}

func TestWhatWasReadLongestAgoMakesRoom(t *testing.T) {
	data := content(40)
	o := serve(t, data)
	m, file := openBounded(t, data, 4, o.URL)
	at := func(chunk int) { read(t, m, data, chunk*image.ChunkBytes+7, 100) }
	for _, c := range []int{5, 10, 20, 30} {
		at(c)
	}
	at(5)  // 10 is the one that was read longest ago
	at(38) // takes its place
	asked := len(o.asked())
	for _, c := range []int{5, 20, 30, 38} {
		at(c)
	}
	if got := len(o.asked()); got != asked {
		t.Errorf("what was read last was fetched again: %v", o.asked()[asked:])
	}
	at(10)
	p := m.Progress()
	if want := int64(6 * image.ChunkBytes); p.FetchedBytes != want || p.AgainBytes != image.ChunkBytes || p.HeldBytes != 4*image.ChunkBytes || p.TooSmall {
		t.Errorf("progress is %+v, want 6 chunks fetched, 1 of them again, 4 held", p)
	}
	if got := onDisk(t, file); got > 4*image.ChunkBytes+8192 {
		t.Errorf("%d bytes are on the disk, and 4 chunks may be", got)
	}
	if err := m.Fill(); !errors.Is(err, ErrBounded) {
		t.Errorf("filling: %v", err)
	}
}

// A program whose files need more than the limit fetches them with each start.
func TestALimitBelowWhatIsReadAgainAndAgainIsSaid(t *testing.T) {
	data := content(40)
	for limit, want := range map[int]bool{8: true, 12: false} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			m, _ := openBounded(t, data, limit, serve(t, data).URL)
			for range 4 {
				for c := range 10 {
					read(t, m, data, 4*c*image.ChunkBytes, 10)
				}
			}
			if p := m.Progress(); p.TooSmall != want || (p.AgainBytes > 0) != want {
				t.Errorf("10 chunks, of which %d are kept, were read 4 times: %+v", limit, p)
			}
		})
	}
}

func TestReadsAtOnceWithinALimitSeeWhatTheImageHas(t *testing.T) {
	data := content(40)
	m, file := openBounded(t, data, 6, serve(t, data).URL)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 7))
			for range 150 {
				off := r.IntN(len(data) - 2*image.ChunkBytes)
				got := make([]byte, 1+r.IntN(2*image.ChunkBytes))
				if _, err := m.ReadAt(got, int64(off)); err != nil || string(got) != string(data[off:off+len(got)]) {
					t.Errorf("%d bytes at %d differ from the image's: %v", len(got), off, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if p := m.Progress(); p.HeldBytes > 6*image.ChunkBytes || p.AgainBytes == 0 {
		t.Errorf("after all reads: %+v", p)
	}
	if got := onDisk(t, file); got > 6*image.ChunkBytes+8192 {
		t.Errorf("%d bytes are on the disk, and 6 chunks may be", got)
	}
}

// One that has a chunk says so to others only if it still has it when it sends it.
func TestABoundedImageGivesNothingToNeighbours(t *testing.T) {
	data := content(10)
	m, _ := openBounded(t, data, 4, serve(t, data).URL)
	read(t, m, data, 0, 100)
	if m.holds(0, 99) {
		t.Error("a bounded image offers a chunk that may go")
	}
}

// slowFile reads what is at a place only when it may.
type slowFile struct {
	File
	at               int64
	reached, proceed chan struct{}
}

func (f slowFile) ReadAt(p []byte, off int64) (int, error) {
	if off == f.at {
		close(f.reached)
		<-f.proceed
	}
	return f.File.ReadAt(p, off)
}

func TestAChunkThatAReadIsAtWorkOnMakesNoRoom(t *testing.T) {
	data := content(40)
	file, err := os.Create(filepath.Join(t.TempDir(), "kept"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	slow := slowFile{File{file}, 5*image.ChunkBytes + 7, make(chan struct{}), make(chan struct{})}
	m := open(t, data, func(c *Config) { c.LimitBytes, c.Backing = 2*image.ChunkBytes, slow }, serve(t, data).URL)
	got, done := make([]byte, 100), make(chan error)
	go func() {
		_, err := m.ReadAt(got, slow.at)
		done <- err
	}()
	<-slow.reached
	for _, c := range []int{10, 20, 30, 36} {
		read(t, m, data, c*image.ChunkBytes+9, 10)
	}
	close(slow.proceed)
	if err := <-done; err != nil || string(got) != string(data[slow.at:slow.at+100]) {
		t.Errorf("a read beside four others, of which two fit, is wrong: %v", err)
	}
}
