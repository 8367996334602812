package netns

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func newHandle(t *testing.T) Handle {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// here is the network namespace of the calling thread.
func here(t *testing.T) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(threadFile, &stat); err != nil {
		t.Error(err)
	}
	return stat.Ino
}

func TestWorkIsDoneInsideAndNowhereElse(t *testing.T) {
	h := newHandle(t)
	inside, err := h.Inode()
	if err != nil {
		t.Fatal(err)
	}
	outside := here(t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := h.Do(func() error {
				if got := here(t); got != inside {
					t.Errorf("inside: got namespace %d, want %d", got, inside)
				}
				runtime.Gosched()
				links, err := net.Interfaces()
				if err == nil && len(links) != 1 {
					t.Errorf("inside: got %d links, want lo only", len(links))
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			if got := here(t); got != outside {
				t.Errorf("afterwards: got namespace %d, want %d", got, outside)
			}
		})
	}
	wg.Wait()
}

func TestTheFirstThreadNeverLeavesItsNamespaces(t *testing.T) {
	h := newHandle(t)
	var before unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &before); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for _, run := range []func(func() error) error{h.Do, OnThrowawayThread} {
				if err := run(func() error {
					if unix.Gettid() == os.Getpid() {
						t.Error("on the first thread, which stands for the process")
					}
					return h.Enter()
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var after unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &after); err != nil || after.Ino != before.Ino {
		t.Errorf("the process is in namespace %d, was in %d; %v", after.Ino, before.Ino, err)
	}
}

func TestAThrownAwayThreadIsNotUsedAgain(t *testing.T) {
	h := newHandle(t)
	outside := here(t)
	for range 20 {
		if err := OnThrowawayThread(h.Enter); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if got := here(t); got != outside {
				t.Errorf("a goroutine runs in namespace %d, want %d", got, outside)
			}
			runtime.Gosched()
		})
	}
	wg.Wait()
}

func TestTheErrorOfTheWorkIsReturned(t *testing.T) {
	h := newHandle(t)
	want := errors.New("no")
	if err := h.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do: got %v", err)
	}
	if err := OnThrowawayThread(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("OnThrowawayThread: got %v", err)
	}
}

func TestAWorkerThatEndsItsGoroutineDoesNotBlockItsCaller(t *testing.T) {
	h := newHandle(t)
	outside := here(t)
	_ = h.Do(func() error { runtime.Goexit(); return nil })
	_ = OnThrowawayThread(func() error { runtime.Goexit(); return nil })
	if got := here(t); got != outside {
		t.Errorf("got namespace %d, want %d", got, outside)
	}
}

func TestANamespacesLockIsHadOnce(t *testing.T) {
	one, other := newHandle(t), newHandle(t)
	release, err := one.Lock()
	if err != nil {
		t.Fatal(err)
	}
	releaseOther, err := other.Lock()
	if err != nil {
		t.Fatal(err)
	}
	releaseOther()
	file, err := os.Open(one.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("while it is held: got %v, want that it would block", err)
	}
	release()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		t.Errorf("once it is released: %v", err)
	}
}
