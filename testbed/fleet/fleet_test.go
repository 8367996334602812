package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/imagestore"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/service"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/netns/netnstest"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Run(m, true)) }

const (
	address   = "10.77.0.1"
	rootBytes = 2 << 20
)

// site is network boot as the server runs it, and a boot API that only takes tokens.
type site struct {
	t       *testing.T
	secret  []byte
	service *service.Service
	store   *imagestore.Store
	clients netns.Handle
	digest  image.Digest // of the manifest

	mu      sync.Mutex
	hellos  map[string]int
	reports map[string]api.Hardware
	stages  map[string][]api.BootStage // by session
}

func newSite(t *testing.T) *site {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	s := &site{t: t, secret: []byte("secret of a test"), hellos: map[string]int{}, reports: map[string]api.Hardware{}, stages: map[string][]api.BootStage{}}
	s.clients = netnstest.Cable(t, "boot0", "nic0", netip.MustParsePrefix(address+"/16"))
	var err error
	if s.store, err = imagestore.Open(t.TempDir(), 0); err != nil {
		t.Fatal(err)
	}
	authority, err := trust.Open(t.TempDir(), address)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address+":7443")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s.handler(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ReadHeaderTimeout: time.Minute}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(tls.NewListener(listener, authority.ServerTLS())) }()
	s.serve(authority.Pin().String())
	return s
}

// serve runs network boot.
func (s *site) serve(pin string) {
	t := s.t
	t.Helper()
	loaders := t.TempDir()
	for _, name := range []string{"undionly.kpxe", "snponly.efi", "ipxe.efi"} {
		if err := os.WriteFile(filepath.Join(loaders, name), bytes.Repeat([]byte(name), 7000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.service, err = service.Open(service.Config{
		Network: netboot.Network{
			Interface: "boot0", Address: netip.MustParsePrefix(address + "/16"), HTTPPort: 8069,
			Machines:  netboot.Range{From: netip.MustParseAddr("10.77.16.0"), To: netip.MustParseAddr("10.77.31.255")},
			Strangers: netboot.Range{From: netip.MustParseAddr("10.77.32.0"), To: netip.MustParseAddr("10.77.47.255")},
		},
		BootServer: address + ":7443", Pin: pin, Leases: &leases{by: map[string]api.Lease{}}, Blobs: s.store, Loaders: loaders,
		Tokens: func(mac string, b *netboot.Boot, port string) string {
			return boot.Seal(s.secret, boot.TokenClaims{
				MAC: mac, Machine: b.Machine, Generation: b.Generation, Purpose: b.Purpose, Port: port, ExpiresAt: time.Now().Add(time.Hour),
			})
		},
		ProbeWait: 100 * time.Millisecond, Sink: func(netboot.Event) {}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.service.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("network boot ended with: %v", err)
		}
	})
}

// put stores content and returns its blob.
func (s *site) put(content []byte) image.Blob {
	s.t.Helper()
	blob := image.Blob{Digest: image.DigestOf(content), SizeBytes: int64(len(content))}
	if err := s.store.Put(s.t.Context(), blob.Digest, bytes.NewReader(content)); err != nil {
		s.t.Fatal(err)
	}
	return blob
}

// table lets machines 0 to n-1 of the fleet boot, the odd ones an environment and the others to be inspected, and strangers enrol.
func (s *site) table(f *Fleet, n int) {
	s.t.Helper()
	kernel, initrd := s.put(bytes.Repeat([]byte("kernel "), 40_000)), s.put(bytes.Repeat([]byte("initrd "), 80_000))
	manifest := image.Manifest{
		Environment: "e", Root: image.Root{Blob: s.put(bytes.Repeat([]byte{7}, rootBytes)), Format: image.EROFS},
		Metal: &image.Metal{Kernel: kernel, Initrd: initrd},
	}
	encoded, digest, err := manifest.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	s.put(encoded)
	s.digest = digest
	of := func(uid string, generation int64, purpose api.BootPurpose) *netboot.Boot {
		return &netboot.Boot{
			Machine: uid, Generation: generation, Purpose: purpose, Manifest: digest, Kernel: kernel.Digest, Initrd: initrd.Digest,
			Architecture: "x86_64", Arguments: "console=ttyS0", ExpiresAt: time.Now().Add(time.Hour),
		}
	}
	t := &netboot.Table{Term: 1, Revision: 1, Stranger: of("", 0, api.BootEnroll), Machines: map[string]*netboot.Machine{}}
	from := netip.MustParseAddr("10.77.16.0").As4()
	for i := range n {
		purpose := api.BootInspect
		if i%2 == 1 {
			purpose = api.BootEnvironment
		}
		mac := f.Machine(i).MAC.String()
		m := &netboot.Machine{Name: "n" + strconv.Itoa(i), MAC: mac, Address: netip.AddrFrom4([4]byte{from[0], from[1], from[2] + byte(i>>8), byte(i)})}
		if m.Boot = of("uid-"+strconv.Itoa(i), 3, purpose); i == n-1 {
			m.Boot = nil // not meant to boot
		}
		t.Machines[mac] = m
	}
	if !s.service.SetTable(t) {
		s.t.Fatal("the table was refused")
	}
}

// handler is the boot API, as far as a test of its clients needs one.
func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+boot.HelloPath, func(w http.ResponseWriter, r *http.Request) {
		var hello boot.Hello
		claims := boot.TokenClaims{}
		err := json.NewDecoder(r.Body).Decode(&hello)
		if err == nil {
			claims, err = boot.Open(s.secret, hello.Token, time.Now())
		}
		client, known := s.service.At(netip.MustParseAddrPort(r.RemoteAddr).Addr())
		if err != nil || !slices.Contains(hello.MACs, claims.MAC) || !known || client.MAC != claims.MAC {
			http.Error(w, fmt.Sprintf("hello of %v with a token for %s from %s (%s): %v", hello.MACs, claims.MAC, r.RemoteAddr, client.MAC, err), http.StatusForbidden)
			return
		}
		s.mu.Lock()
		s.hellos[claims.MAC]++
		s.mu.Unlock()
		file, err := s.store.Open(s.digest)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer file.Close()
		manifest := make([]byte, file.Size())
		_, _ = file.ReadAt(manifest, 0)
		_ = json.NewEncoder(w).Encode(boot.Welcome{Session: claims.MAC, Purpose: claims.Purpose, Manifest: manifest})
	})
	mux.HandleFunc("POST "+boot.StagePath, func(w http.ResponseWriter, r *http.Request) {
		var stage boot.StageReport
		_ = json.NewDecoder(r.Body).Decode(&stage)
		s.mu.Lock()
		s.stages[session(r)] = append(s.stages[session(r)], stage.Stage)
		s.mu.Unlock()
	})
	mux.HandleFunc("POST "+boot.ReportPath, func(w http.ResponseWriter, r *http.Request) {
		var report boot.Report
		_ = json.NewDecoder(r.Body).Decode(&report)
		s.mu.Lock()
		s.reports[session(r)] = report.Hardware
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(boot.Instruction{Do: "poweroff"})
	})
	return mux
}

func session(r *http.Request) string { return r.Header.Get("Authorization")[len("Bearer "):] }

// leases are strangers' in memory.
type leases struct {
	mu sync.Mutex
	by map[string]api.Lease
}

func (l *leases) All() []api.Lease { return nil }

func (l *leases) Keep(_ context.Context, lease api.Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by[lease.MAC] = lease
	return nil
}

func (l *leases) Drop(context.Context, string) error { return nil }

func TestAFleetBootsOverTheRealProtocols(t *testing.T) {
	s := newSite(t)
	f, err := New(Config{Interface: "nic0", Namespace: &s.clients, Seed: 42, RootBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := 61
	if text := os.Getenv("NEARMETAL_FLEET_MACHINES"); text != "" {
		if all, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	roomForNeighbors(t, 3*all)
	known := all * 2 / 3 // the last known one is not meant to boot, those above are strangers
	s.table(f, known)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	full := tableFulls()
	results := f.Boot(ctx, 0, all)
	summarize(t, results)
	if n := tableFulls() - full; n > 0 {
		t.Logf("the kernel's ARP table was full %d times meanwhile: something else on this host has many neighbours, and machines starve by it", n)
	}
	for i, r := range results {
		mac := r.Machine.MAC.String()
		if i == known-1 {
			if !errors.Is(r.Err, ErrNotMeant) {
				t.Errorf("a machine that is not meant to boot: got %v", r.Err)
			}
			continue
		}
		if r.Err != nil {
			t.Error(r.Err)
			continue
		}
		want, read := []api.BootStage{api.StageKernel}, int64(0)
		purpose := api.BootInspect
		switch {
		case i >= known:
			purpose = api.BootEnroll
		case i%2 == 1:
			purpose, read = api.BootEnvironment, rootBytes
			want = append(want, api.StageRoot, api.StageAgent, api.StageReady)
		}
		if s.hellos[mac] != 1 || r.Stages.Welcome.Purpose != purpose || !reflect.DeepEqual(s.stages[mac], want) {
			t.Errorf("machine %d: %d hellos, purpose %s, stages %v; want 1, %s, %v", i, s.hellos[mac], r.Stages.Welcome.Purpose, s.stages[mac], purpose, want)
		}
		if r.Stages.RootBytes != read || r.Stages.LoaderBytes < 7*120_000 {
			t.Errorf("machine %d read %d of the root and %d before; want %d and at least kernel and initrd", i, r.Stages.RootBytes, r.Stages.LoaderBytes, read)
		}
		if hw, reported := s.reports[mac]; (purpose != api.BootEnvironment) != reported || reported && !reflect.DeepEqual(hw, r.Machine.Hardware) {
			t.Errorf("machine %d reported %+v", i, hw)
		}
	}
}

// roomForNeighbors raises the bound of the kernel's ARP table for the test, if it is too low: 1,024 unless an administrator raised it, for
// all network namespaces of a host together.
func roomForNeighbors(t *testing.T, entries int) {
	t.Helper()
	const name = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"
	host, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getppid())) // TestMain's: the bound is told and taken there only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	write := func(value []byte) {
		if err := host.Do(func() error { return os.WriteFile(name, value, 0o644) }); err != nil {
			t.Errorf("the bound of the ARP table: %v", err)
		}
	}
	var before []byte
	if err := host.Do(func() (err error) { before, err = os.ReadFile(name); return err }); err != nil {
		needs.Missing(t, "the kernel's limit of neighbours can't be read: %v", err)
	}
	if bound, err := strconv.Atoi(string(bytes.TrimSpace(before))); err == nil && bound < entries {
		write([]byte(strconv.Itoa(entries)))
		t.Cleanup(func() { write(before) })
	}
}

// tableFulls is how often the kernel had no room for a neighbour, for all namespaces of the host: the last column, by CPU.
func tableFulls() (sum int64) {
	host, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getppid()))
	if err != nil {
		return 0
	}
	defer host.Close()
	var text []byte
	_ = host.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/stat/arp_cache"); return err }) // 0 is fine where it is not told
	for line := range strings.Lines(string(text)) {
		last := line[strings.LastIndex(strings.TrimSpace(line), " ")+1:]
		if n, err := strconv.ParseInt(strings.TrimSpace(last), 16, 64); err == nil {
			sum += n
		}
	}
	return sum
}

// summarize logs how long the stages took.
func summarize(t *testing.T, results []Result) {
	for _, stage := range []struct {
		name string
		of   func(Stages) time.Duration
	}{
		{"dhcp", func(s Stages) time.Duration { return s.DHCP }},
		{"loader", func(s Stages) time.Duration { return s.Loader }},
		{"kernel", func(s Stages) time.Duration { return s.Kernel }},
		{"root", func(s Stages) time.Duration { return s.Root }},
		{"all", Stages.Total},
	} {
		var took []time.Duration
		repeats := 0
		for _, r := range results {
			if r.Err == nil {
				took = append(took, stage.of(r.Stages))
				repeats += r.Stages.Repeats
			}
		}
		if len(took) == 0 {
			return
		}
		slices.Sort(took)
		t.Logf("%-6s of %d machines: median %v, slowest %v (%d repeats in all)", stage.name, len(took), took[len(took)/2].Round(time.Millisecond),
			took[len(took)-1].Round(time.Millisecond), repeats)
	}
}

func TestMachinesOfAFleetAreAllDifferentAndAlwaysTheSame(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	products := map[string]int{}
	for i := range 3000 {
		hw := Hardware(7, i)
		if !reflect.DeepEqual(hw, Hardware(7, i)) {
			t.Fatalf("machine %d differs from itself", i)
		}
		names := []string{hw.Serial, hw.UUID}
		for _, n := range hw.NICs {
			names = append(names, n.MAC)
		}
		for _, d := range hw.Disks {
			names = append(names, d.Serial)
		}
		for _, h := range hw.HCAs {
			names = append(names, h.GUID)
		}
		for _, name := range names {
			if other, taken := seen[name]; taken {
				t.Fatalf("machines %d and %d both have %s", other, i, name)
			}
			seen[name] = i
		}
		products[hw.Product]++
	}
	if len(products) != len(kinds()) {
		t.Errorf("3000 machines are of %v only", products)
	}
	if MAC(7, 1, 0) == MAC(8, 1, 0) {
		t.Error("two seeds have the same MACs")
	}
}
