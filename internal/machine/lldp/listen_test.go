package lldp

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// cable makes two namespaces with a veth between them, eth0 at either end, both up.
func cable(t *testing.T) (here, there netns.Handle) {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	var ends [2]netns.Handle
	for i := range ends {
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		ends[i] = ns
	}
	run(t, ends[0], "ip", "link", "add", "eth0", "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", "eth0", "address",
		"02:00:00:00:00:02", "netns", ends[1].Path())
	for _, ns := range ends {
		run(t, ns, "ip", "link", "set", "eth0", "up")
	}
	return ends[0], ends[1]
}

// run runs a program in a namespace.
func run(t *testing.T, ns netns.Handle, name string, args ...string) {
	t.Helper()
	if err := ns.Do(func() error {
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s %s: %s", name, strings.Join(args, " "), out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// listen is Listen in a namespace.
func listen(ctx context.Context, ns netns.Handle, wait time.Duration, interfaces ...string) (neighbors map[string]api.Neighbor, err error) {
	// Sockets belong to the namespace they were opened in, and Listen opens one in a goroutine for each interface.
	hearing := func() error { neighbors, err = Listen(ctx, interfaces, wait); return nil }
	if doErr := ns.Do(hearing); doErr != nil {
		return nil, doErr
	}
	return neighbors, err
}

func TestARealSpeakerIsHeard(t *testing.T) {
	lldpd := needs.Program(t, "lldpd")
	here, there := cable(t)
	dir, err := os.MkdirTemp("", "nearmetal-lldp-test-") // not the test's own folder: lldpd reads it as a user of its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "lldpd.conf")
	if err := os.WriteFile(config, []byte("configure system hostname leaf-7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var speaker *exec.Cmd
	var said bytes.Buffer
	if err := there.Do(func() error {
		speaker = exec.CommandContext(t.Context(), lldpd, "-d", "-I", "eth0", "-u", filepath.Join(dir, "socket"), "-O", config)
		speaker.Stderr = &said
		return speaker.Start()
	}); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() { _ = speaker.Process.Signal(syscall.SIGTERM); _ = speaker.Wait() })
	t.Cleanup(stop)
	start := time.Now()
	got, err := listen(t.Context(), here, 35*time.Second, "eth0")
	want := api.Neighbor{Chassis: "02:00:00:00:00:02", Port: "02:00:00:00:00:02", System: "leaf-7"}
	if err != nil || got["eth0"] != want {
		stop()
		t.Fatalf("got %+v, %v; want %+v; lldpd says:\n%s", got, err, want, said.String())
	}
	t.Logf("heard after %v", time.Since(start))

	// It has just spoken and would again in half a minute; a neighbour it doesn't know is answered before.
	run(t, here, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:07")
	got, err = listen(t.Context(), here, 15*time.Second, "eth0")
	if err != nil || got["eth0"] != want {
		t.Errorf("a new neighbour: got %+v, %v; want %+v", got, err, want)
	}
}

func TestSilenceEndsWithTheWait(t *testing.T) {
	t.Parallel()
	here, _ := cable(t)
	got, err := listen(t.Context(), here, 50*time.Millisecond, "eth0")
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v; want no neighbour and no error", got, err)
	}
}

func TestAnInterfaceThatIsAwayDoesNotSilenceTheOthers(t *testing.T) {
	t.Parallel()
	here, _ := cable(t)
	got, err := listen(t.Context(), here, 50*time.Millisecond, "eth0", "eth9")
	if err == nil || !strings.Contains(err.Error(), "eth9") || len(got) != 0 {
		t.Errorf("got %v, %v; want an error about eth9 only", got, err)
	}
}
