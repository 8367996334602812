package xrootd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/handover"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// inMember listens at a port of the loopback of a namespace of its own, as in a member, and has a cache serve who connects there until ctx ends.
func inMember(ctx context.Context, t *testing.T, c *Cache) (member netns.Handle, at string, served <-chan error) {
	t.Helper()
	member, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = member.Close() })
	var listener *net.TCPListener
	if err := member.Do(func() error {
		if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
			return err
		}
		listener, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	ended := make(chan error, 64)
	go func() {
		for {
			conn, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			go func() { ended <- c.Serve(ctx, conn) }()
		}
	}()
	return member, listener.Addr().String(), ended
}

func TestAHandedConnectionEndsWithItsMember(t *testing.T) {
	w := newWorld(t, condition.Condition{})
	cfg := w.config()
	cfg.Handed, cfg.Paths = true, []string{"/events"}
	c, err := StartCache(t.Context(), w.near, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	member, at, served := inMember(ctx, t, c)
	inside := *w
	inside.near = member
	for range 2 {
		if got, err := inside.read(t, at); err != nil || got != w.want(t) {
			t.Fatalf("reading in the member: %s, %v", got, err)
		}
	}
	if got, err := w.read(t, cfg.Address.String()); err != nil || got != w.want(t) {
		t.Errorf("reading at the cache's own port: %s, %v", got, err)
	}
	for range 2 {
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("a read that has ended: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("it is not noticed that a reader has gone")
		}
	}

	// One that stays open ends with the member, and the cache keeps nothing of it.
	var conn net.Conn
	if err := member.Do(func() (err error) { conn, err = net.Dial("tcp4", at); return err }); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write(handshake); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, answerBytes)); err != nil || n == 0 {
		t.Fatalf("the cache does not answer: %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("a connection that was open when its member ended: %v", err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, context.DeadlineExceeded) || err == nil {
		t.Errorf("a connection outlives its member: %d B, %v", n, err)
	}
	select {
	case <-c.Ended():
		t.Error("the cache has ended with a member's connection")
	default:
	}
}

func TestACacheThatKeepsAConnectionIsEnded(t *testing.T) {
	w := newWorld(t, condition.Condition{})
	cfg := w.config()
	cfg.Handed = true
	c, err := StartCache(t.Context(), w.near, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	member, at, served := inMember(ctx, t, c)
	var conn net.Conn
	if err := member.Do(func() (err error) { conn, err = net.Dial("tcp4", at); return err }); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write(handshake); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, answerBytes)); err != nil || n == 0 {
		t.Fatalf("the cache does not answer: %v", err)
	}
	if err := syscall.Kill(c.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitStopped(t, c.PID())
	cancel()
	if err := <-served; !errors.Is(err, handover.ErrKept) {
		t.Errorf("a cache that stands still: %v; want that it keeps the connection", err)
	}
	select {
	case <-c.Ended():
	case <-time.After(10 * time.Second):
		t.Error("it goes on with a connection of a member that has ended")
	}
}

// awaitStopped waits until all threads of a process stand still: a signal stops each when it next looks.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	again, late := time.NewTicker(10*time.Millisecond), time.Now().Add(20*time.Second)
	defer again.Stop()
	for ; ; <-again.C {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if len(tasks) > 0 && !slices.ContainsFunc(tasks, func(path string) bool {
			stat, err := os.ReadFile(path)
			return err == nil && !strings.Contains(string(stat), ") T ")
		}) {
			return
		}
		if time.Now().After(late) {
			t.Fatal("the process does not stop")
		}
	}
}
