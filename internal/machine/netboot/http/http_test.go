package http

import (
	"bytes"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/loaders"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/presence"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/storm"
)

const (
	known    = "02:00:00:00:00:01"
	stranger = "02:00:00:00:00:99"
	address  = "10.77.1.1"
	script   = "/boot/02-00-00-00-00-01.ipxe"
)

func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

type memory map[image.Digest][]byte

func (m memory) Open(d image.Digest) (netboot.Blob, error) {
	content, ok := m[d]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return closing{bytes.NewReader(content)}, nil
}

type closing struct{ *bytes.Reader }

func (closing) Close() error { return nil }

// bench is a handler with one machine in generation 7.
type bench struct {
	http.Handler
	presence *presence.Presence
	table    *netboot.Table
	boot     *netboot.Boot
	events   *[]netboot.Event
	content  []byte
}

func newBench() bench {
	var events []netboot.Event
	who := presence.New("boot0", func(e netboot.Event) { events = append(events, e) })
	content := bytes.Repeat([]byte("0123456789"), 20_000)
	boot := &netboot.Boot{
		Machine: "uid-1", Generation: 7, Purpose: api.BootEnvironment, Manifest: image.DigestOf([]byte("m")), Architecture: "x86_64",
		Kernel: image.DigestOf(content), Initrd: image.DigestOf([]byte("initrd")), Arguments: "console=ttyS0", ExpiresAt: now().Add(time.Hour),
	}
	b := bench{presence: who, boot: boot, events: &events, content: content}
	b.table = &netboot.Table{Term: 1, Revision: 1, Machines: map[string]*netboot.Machine{
		known: {Name: "n1", MAC: known, Address: netip.MustParseAddr(address), Boot: boot},
	}}
	who.SetTable(b.table)
	b.Handler = Handler(Config{
		Network:  netboot.Network{Interface: "boot0", Address: netip.MustParsePrefix("10.77.0.1/16"), HTTPPort: 8069},
		Presence: who, Loaders: loaders.Set{"snponly.efi": []byte("loader")}, Storm: storm.New(),
		Blobs:      memory{boot.Kernel: content, boot.Initrd: []byte("initrd")},
		Tokens:     func(mac string, b *netboot.Boot, port string) string { return "token/" + mac + "/" + port },
		BootServer: "10.77.0.1:7443", Pin: "sha256:ab", Now: now, Log: slog.New(slog.DiscardHandler),
	})
	return b
}

// next is the same with another boot for the machine.
func (b bench) next(boot *netboot.Boot) {
	t := *b.table
	t.Revision++
	m := *b.table.Machines[known]
	m.Boot = boot
	t.Machines = map[string]*netboot.Machine{known: &m}
	b.presence.SetTable(&t)
}

func (b bench) get(from, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://10.77.0.1:8069"+target, nil)
	r.RemoteAddr = from + ":40000"
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

func TestAMachineGetsItsScriptAndNobodyElseDoes(t *testing.T) {
	b := newBench()
	w := b.get(address, script+"?generation=7")
	for _, want := range []string{"#!ipxe\n", " console=ttyS0 nearmetal.server=10.77.0.1:7443 ", "nearmetal.token=token/02:00:00:00:00:01/boot0 ", "generation 7"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the script lacks %q: %s", want, w.Body)
		}
	}
	if w.Header().Get("Cache-Control") != "no-store" {
		t.Error("a script with a token may be kept by caches")
	}
	for from, target := range map[string]string{"10.77.1.2": script, "10.99.0.1": script} {
		if w := b.get(from, target); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "token/") {
			t.Errorf("from %s: %d %s", from, w.Code, w.Body)
		}
	}
	// Somebody else was given the address since: the old holder is gone.
	b.presence.Bind(stranger, netip.MustParseAddr(address))
	if w := b.get(address, script); w.Code != http.StatusForbidden {
		t.Errorf("an address taken over: %d %s", w.Code, w.Body)
	}
}

func TestNothingOfAnEarlierBootIsGiven(t *testing.T) {
	b := newBench()
	later := *b.boot
	later.Generation, later.Kernel = 8, image.DigestOf([]byte("other"))
	b.next(&later)
	w := b.get(address, script+"?generation=7")
	if body := w.Body.String(); strings.Contains(body, "token/") || strings.Contains(body, "kernel ") || !strings.Contains(body, "generation=8") {
		t.Errorf("an earlier boot's script: %s", w.Body)
	}
	b.next(&later)
	freed := newBench()
	freed.next(nil)
	w = freed.get(address, script+"?generation=7")
	if body := w.Body.String(); strings.Contains(body, "token/") || strings.Contains(body, "images") || !strings.HasSuffix(body, "exit\n") {
		t.Errorf("a freed machine: %s", w.Body)
	}
	ready := newBench() // it ran, and its firmware begins anew
	ready.table.Machines[known].Waits = true
	ready.next(nil)
	w = ready.get(address, script)
	if body := w.Body.String(); strings.Contains(body, "token/") || strings.Contains(body, "images") || !strings.Contains(body, "chain --replace") {
		t.Errorf("a machine whose next boot is about to be decided: %s", w.Body)
	}
	late := newBench()
	expired := *late.boot
	expired.ExpiresAt = now().Add(-time.Second)
	late.next(&expired)
	if w := late.get(address, script); strings.Contains(w.Body.String(), "token/") {
		t.Errorf("a boot that expired: %s", w.Body)
	}
}

func TestAnotherArchitecturesKernelIsNotGiven(t *testing.T) {
	b := newBench()
	b.presence.Hear(presence.Heard{MAC: known, Netboot: true, Firmware: api.FirmwareUEFI, Architecture: "aarch64"}, now())
	if w := b.get(address, script); strings.Contains(w.Body.String(), "images") || !strings.Contains(w.Body.String(), "is aarch64, but") {
		t.Errorf("the script is %s", w.Body)
	}
}

func TestBlobsComeWholeAndInRanges(t *testing.T) {
	b := newBench()
	target := "/images/" + b.boot.Kernel.Hex()
	for ranges, want := range map[string]string{
		"": string(b.content), "bytes=5-9": "56789", "bytes=-3": "789", "bytes=199998-": "89", "bytes=0-99999": string(b.content[:100_000]),
	} {
		header := []string{}
		if ranges != "" {
			header = []string{"Range", ranges}
		}
		w := b.get(address, target, header...)
		if got := w.Body.String(); got != want || w.Header().Get("ETag") != `"`+b.boot.Kernel.Hex()+`"` {
			t.Errorf("range %q: %d, %d bytes, want %d", ranges, w.Code, len(got), len(want))
		}
	}
	if w := b.get(address, target, "Range", "bytes=900000-"); w.Code != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("a range past the end: %d", w.Code)
	}
	if w := b.get("192.0.2.1", target); w.Code != http.StatusForbidden {
		t.Errorf("from outside the provisioning network: %d", w.Code)
	}
}

func TestTheLoaderStageEndsWithKernelAndInitrd(t *testing.T) {
	b := newBench()
	b.presence.Hear(presence.Heard{MAC: known, Netboot: true, Discover: true, Firmware: api.FirmwareUEFI}, now())
	b.get(address, script+"?generation=7")
	b.get(address, "/images/"+b.boot.Kernel.Hex())
	b.get(address, "/images/"+b.boot.Initrd.Hex(), "Range", "bytes=0-1")
	var stages []api.BootStage
	for _, e := range *b.events {
		stages = append(stages, e.Stage)
	}
	if len(stages) != 2 || stages[0] != api.StageFirmware || stages[1] != api.StageDHCP {
		t.Fatalf("before all was handed over: %v", stages)
	}
	b.get(address, "/images/"+b.boot.Initrd.Hex())
	last := (*b.events)[len(*b.events)-1]
	if last.Stage != api.StageLoader || last.Generation != 7 || last.Bytes < 200_006 {
		t.Errorf("at the end: %+v", last)
	}
}

func TestOnlyTheThreeKindsOfPathsExist(t *testing.T) {
	b := newBench()
	for _, target := range []string{"/", "/images/", "/images/../boot", "/images/" + strings.Repeat("z", 64), "/loader/..%2fsnponly.efi", "/loader/passwd", "/boot/x.ipxe", "/etc/passwd"} {
		if w := b.get(address, target); w.Code < 300 {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	if w := b.get(address, "/loader/snponly.efi"); w.Body.String() != "loader" {
		t.Errorf("the loader: %d %s", w.Code, w.Body)
	}
}

func FuzzPaths(f *testing.F) {
	f.Add(script, "generation=7", "bytes=0-5")
	f.Add("/images/"+strings.Repeat("0", 64), "", "bytes=-")
	f.Add("/loader/../x", "%", "")
	f.Fuzz(func(t *testing.T, path, query, ranges string) {
		b := newBench()
		r := httptest.NewRequest(http.MethodGet, "http://10.77.0.1:8069/", nil)
		r.URL = &url.URL{Path: "/" + strings.TrimPrefix(path, "/"), RawQuery: query}
		r.RemoteAddr = "10.77.1.2:1"
		r.Header.Set("Range", ranges)
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		if strings.Contains(w.Body.String(), "token/") {
			t.Errorf("a token went to another machine: %s", w.Body)
		}
	})
}
