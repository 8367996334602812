package study

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/fusefile"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/imagemount"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/lazyroot"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// softwareAt is where the far end serves the image.
var softwareAt = netip.AddrPortFrom(farEnd.Addr(), 8082)

// softwareServer is an image of a tree, which an HTTP server at the far end of a link has.
type softwareServer struct {
	dir       string
	near, far netns.Handle
	link      *condition.Link
	server    *http.Server
	served    sync.WaitGroup
	client    *http.Client
	root      image.Root
	chunks    *image.Chunks
	mounts    *mounts
}

// mounts is a mount namespace of its own, on a thread of its own: a namespace that somebody else makes meanwhile has no copy of what is mounted here, which
// would keep it mounted.
type mounts struct{ work chan func() }

func newMounts() (*mounts, error) {
	m := &mounts{work: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the namespace
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		made <- err
		for do := range m.work {
			do()
		}
	}()
	if err := <-made; err != nil {
		close(m.work)
		return nil, fmt.Errorf("making a mount namespace: %w; run this as root", err)
	}
	return m, nil
}

// do does something in the namespace.
func (m *mounts) do(f func() error) error {
	done := make(chan error)
	m.work <- func() { done <- f() }
	return <-done
}

// newSoftwareServer makes the image and serves it.
func newSoftwareServer(ctx context.Context, tree string, at setting) (*softwareServer, error) {
	dir, err := os.MkdirTemp("/var/tmp", "nearmetal-software-")
	if err != nil {
		return nil, err
	}
	f := &softwareServer{dir: dir}
	if f.mounts, err = newMounts(); err == nil {
		err = errors.Join(f.build(ctx, tree), f.serve(ctx, at))
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// build makes the image and its chunk list.
func (f *softwareServer) build(ctx context.Context, tree string) error {
	path := filepath.Join(f.dir, "image")
	if said, err := exec.CommandContext(ctx, "mkfs.erofs", "--quiet", path, tree).CombinedOutput(); err != nil {
		return fmt.Errorf("making an image of %s: %w: %s (apt install erofs-utils)", tree, err, lastLines(string(said)))
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	blob, list, err := image.MakeChunks(file)
	if err != nil {
		return err
	}
	f.root = image.Root{Blob: blob, Format: image.EROFS, ChunkBytes: image.ChunkBytes, Chunks: image.Blob{Digest: image.DigestOf(list), SizeBytes: int64(len(list))}}
	f.chunks, err = image.ParseChunks(list, f.root)
	return err
}

// serve makes the link, and serves the image at its far end.
func (f *softwareServer) serve(ctx context.Context, at setting) error {
	var err error
	for _, space := range []*netns.Handle{&f.near, &f.far} {
		if *space, err = netns.New(); err == nil {
			err = space.Do(loopbackUp)
		}
		if err != nil {
			return fmt.Errorf("making a network namespace: %w; run this as root", err)
		}
	}
	way := at.condition(0)
	f.link, err = condition.Open(condition.Config{
		Near: condition.End{Space: f.near, Name: "near", Address: nearEnd}, Far: condition.End{Space: f.far, Name: "far", Address: farEnd}, There: way, Back: way,
	})
	if err == nil {
		err = f.link.Verify(ctx, 50)
	}
	if err != nil {
		return err
	}
	var listener net.Listener
	if err := f.far.Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", softwareAt.String())
		return err
	}); err != nil {
		return err
	}
	path := filepath.Join(f.dir, "image")
	f.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/"+f.root.Digest.Hex() {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, path)
	})}
	f.served.Go(func() { _ = f.server.Serve(listener) }) // it ends with an error in any case
	f.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		doing := f.near.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, doing
	}}}
	return nil
}

// close ends all that there is.
func (f *softwareServer) close() {
	if f.server != nil {
		_ = f.server.Close()
		f.served.Wait()
	}
	if f.link != nil {
		_ = f.link.Close()
	}
	_ = f.near.Close()
	_ = f.far.Close()
	if f.mounts != nil {
		close(f.mounts.work)
	}
	_ = os.RemoveAll(f.dir)
}

// softwareTree is the tree at the near end. It reads from whichever image it has.
type softwareTree struct {
	*softwareServer
	limit int64
	at    string
	shown *fusefile.File
	kept  *os.File

	mu  sync.Mutex
	now *lazyroot.Image
	// ended is what images fetched that were dropped.
	ended int64
}

// mount mounts the tree. Nothing of it is there yet.
func (f *softwareServer) mount(limitBytes int64) (*softwareTree, error) {
	t := &softwareTree{softwareServer: f, limit: limitBytes, at: filepath.Join(f.dir, "tree")}
	err := t.dropSoftware()
	if err == nil {
		err = t.show()
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *softwareTree) image() *lazyroot.Image {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// ReadAt reads from the present image.
func (t *softwareTree) ReadAt(p []byte, off int64) (int, error) { return t.image().ReadAt(p, off) }

// fetched is how many bytes were downloaded so far.
func (t *softwareTree) fetched() int64 { return t.ended + t.image().Progress().FetchedBytes }

// dropSoftware begins with an empty software cache. What the kernel has stays.
func (t *softwareTree) dropSoftware() error {
	kept, err := os.CreateTemp(t.dir, "kept-")
	if err != nil {
		return err
	}
	if err := os.Remove(kept.Name()); err != nil {
		return errors.Join(err, kept.Close())
	}
	fresh := lazyroot.New(lazyroot.Config{
		Root: t.root, Chunks: t.chunks, Backing: lazyroot.File{File: kept}, LimitBytes: t.limit, Server: "http://" + softwareAt.String() + "/", Client: t.client,
		Log: slog.New(slog.DiscardHandler),
	})
	if t.now != nil {
		t.ended += t.now.Progress().FetchedBytes
		t.now.Close()
		err = t.kept.Close()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now, t.kept = fresh, kept
	return err
}

// dropPages has the kernel forget what it has of the tree, and of the software cache's file.
func (t *softwareTree) dropPages() error {
	if err := t.hide(); err != nil {
		return err
	}
	if err := t.kept.Sync(); err != nil { // only what is on the disk can be forgotten
		return err
	}
	if err := unix.Fadvise(int(t.kept.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("dropping pages of the software cache: %w", err)
	}
	return t.show()
}

// show mounts the image, and the tree that is in it.
func (t *softwareTree) show() error {
	return t.mounts.do(func() (err error) {
		if t.shown, err = fusefile.Mount(filepath.Join(t.dir, "shown"), t, t.root.SizeBytes); err != nil {
			return err
		}
		if _, err = imagemount.Mount(environment.Layer{Path: t.shown.Path(), Format: image.EROFS}, t.at); err != nil {
			err = errors.Join(err, t.shown.Close())
			t.shown = nil
		}
		return err
	})
}

// hide unmounts both.
func (t *softwareTree) hide() error {
	if t.shown == nil {
		return nil
	}
	return t.mounts.do(func() error {
		if err := unix.Unmount(t.at, 0); err != nil {
			return fmt.Errorf("unmounting the tree: %w", err)
		}
		err := t.shown.Close()
		t.shown = nil
		return err
	})
}

func (t *softwareTree) close() {
	_ = t.hide() // what can't be unmounted goes with the namespace
	if t.now != nil {
		t.now.Close()
		_ = t.kept.Close()
	}
}

// start runs the program, and returns how long it took.
func (f *softwareServer) start(ctx context.Context, t *softwareTree, command []string) (time.Duration, error) {
	words := make([]string, len(command))
	for i, w := range command {
		words[i] = strings.ReplaceAll(w, "{}", t.at)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Dir = "/" // a directory in the tree would keep it mounted
	began := time.Now()
	if err := f.mounts.do(cmd.Run); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", words[0], err, lastLines(said.String()))
	}
	return time.Since(began), nil
}
