package cycle

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/imagestore"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/netns/netnstest"
	"github.com/nearmetal/nearmetal/internal/server"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
	"github.com/nearmetal/nearmetal/testbed/fleet"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Run(m, true)) }

const (
	environment = "e"
	provision   = "boot0"
	nic         = "nic0"
)

// newSite runs a server that has two environments, "inspect" and e, whose kernels and roots nobody runs.
func newSite(t *testing.T) (*client.Client, netns.Handle) {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	clients := netnstest.Cable(t, provision, nic, netip.MustParsePrefix("10.77.0.1/16"))
	dir, err := os.MkdirTemp("", "nmcycle") // short: the path of a socket has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	stock(t, dir)
	loaders := t.TempDir()
	for _, name := range []string{"undionly.kpxe", "snponly.efi", "ipxe.efi"} {
		if err := os.WriteFile(filepath.Join(loaders, name), bytes.Repeat([]byte(name), 7000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	control, err := server.Open(server.Config{
		Server: config.Server{StateDir: dir, Listen: "127.0.0.1:7700", Provision: config.Provision{Interface: provision, Loaders: loaders}}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- control.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	c, err := client.New(client.Options{Addr: "unix:" + filepath.Join(dir, config.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	return c, clients
}

// stock puts environments into a state directory, as a trusted builder's.
func stock(t *testing.T, dir string) {
	t.Helper()
	blobs, err := imagestore.Open(filepath.Join(dir, "images"), 0)
	if err != nil {
		t.Fatal(err)
	}
	put := func(content []byte) image.Blob {
		blob := image.Blob{Digest: image.DigestOf(content), SizeBytes: int64(len(content))}
		if err := blobs.Put(t.Context(), blob.Digest, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		return blob
	}
	stored, err := etcd.Open(t.Context(), etcd.Config{Dir: filepath.Join(dir, "etcd"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stored.Close() }()
	repo := state.New(stored)
	if err := repo.CheckVersion(t.Context()); err != nil {
		t.Fatal(err)
	}
	kernel, initrd := put(bytes.Repeat([]byte("kernel "), 4000)), put(bytes.Repeat([]byte("initrd "), 8000))
	for _, name := range []string{"inspect", environment} {
		manifest := image.Manifest{Environment: name, Architecture: "x86_64", Stacks: []api.Stack{api.StackMetal}, Metal: &image.Metal{Kernel: kernel, Initrd: initrd, KernelVersion: "6.1"}}
		if name == environment {
			manifest.Root = image.Root{Blob: put(bytes.Repeat([]byte{7}, 1<<20)), Format: image.EROFS}
		}
		encoded, digest, err := manifest.Encode()
		if err != nil {
			t.Fatal(err)
		}
		put(encoded)
		img := api.Image{
			Digest: string(digest), Environment: name, Architecture: "x86_64", Stacks: manifest.Stacks, RootBytes: manifest.Root.SizeBytes, MetalBytes: kernel.SizeBytes + initrd.SizeBytes,
			KernelVersion: "6.1", BuiltAt: time.Now(), BuiltBy: []api.BuiltBy{{Node: "n1", Digest: string(digest), Trusted: true}},
		}
		if _, err := repo.PutImage(t.Context(), img); err != nil {
			t.Fatal(err)
		}
		if _, err := repo.SetEnvironment(t.Context(), api.EnvironmentRecord{Name: name, Digest: string(digest)}); err != nil {
			t.Fatal(err)
		}
	}
}

// Users have clusters of whole machines, lose a machine of each, are healed and delete them, twice each. In the end all machines are off, clean and
// nobody's, and neither clusters, networks nor goroutines are left.
func TestClustersOfWholeMachinesThatComeAndGoLeaveNothing(t *testing.T) {
	c, clients := newSite(t)
	f, err := fleet.New(fleet.Config{Interface: nic, Namespace: &clients, Seed: 1, Patience: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	short, err := os.MkdirTemp("", "nm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	machines, err := Start(ctx, f, short)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = machines.Close()
		if first := machines.first.Load(); first != nil {
			t.Logf("the first boot that came to nothing: %v", *first)
		}
	})
	const count, size, lives = 10, 2, 2
	if err := Enroll(ctx, c, f, count); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	result, err := Run(ctx, Config{
		Client: c, Machines: machines, Count: count, Size: size, Environment: environment, Lives: lives, Settled: 4, Rest: 30 * time.Second, Every: time.Second,
		Sample: func(context.Context) (Sample, error) {
			return Sample{At: time.Now(), Goroutines: runtime.NumGoroutine()}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("measured: %d lives in %.1f s; %d boots for members, %d for cleanings; goroutines at rest %d before, %d after", len(result.Lives), time.Since(began).Seconds(), result.Members, result.Cleanings,
		result.Before.Goroutines, result.After.Goroutines)
	users := count / 5 * 4 / size
	if want := users * lives; len(result.Lives) != want {
		t.Errorf("%d clusters had a life, want %d", len(result.Lives), want)
	}
	if want := int64(users * lives * (size + 1)); result.Members < want || result.Cleanings == 0 {
		t.Errorf("%d boots for members, want at least %d, and %d for cleanings, want some", result.Members, want, result.Cleanings)
	}
	for _, left := range result.Left {
		t.Errorf("left: %s", left)
	}
	if t.Failed() {
		_ = pprof.Lookup("goroutine").WriteTo(t.Output(), 1)
	}
}
