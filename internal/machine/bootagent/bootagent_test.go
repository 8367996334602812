package bootagent

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/lazyroot"
)

func TestTheLastStageTellsHowMuchOfTheRootCameFromOtherMachines(t *testing.T) {
	r := &root{local: true}
	for _, p := range []lazyroot.Progress{
		{ReadBytes: 10, HeldBytes: 700, RootBytes: 700, PeerBytes: 300}, {ReadBytes: 1, HeldBytes: 200, RootBytes: 200, PeerBytes: 100},
	} {
		ours, theirs := net.Pipe()
		s := &rootServer{control: ours, whole: make(chan struct{}), failed: make(chan struct{}), heard: make(chan struct{})}
		go s.listen()
		go func() { // the process that serves the root
			defer func() { _ = theirs.Close() }()
			if json.NewDecoder(theirs).Decode(new(serveRequest)) == nil {
				_ = json.NewEncoder(theirs).Encode(serveEvent{Progress: &p})
			}
		}()
		r.volumes = append(r.volumes, &volume{server: s})
	}
	if got, want := readyReport(r.status(t.Context())), (boot.StageReport{
		Stage: api.StageReady, ReadBytes: 11, RootBytes: 900, PeerBytes: 400, Local: true,
	}); !reflect.DeepEqual(got, want) {
		t.Errorf("it tells %+v, want %+v", got, want)
	}
}

func TestTheFileSystemOfEachLayerIsLoaded(t *testing.T) {
	m := image.Manifest{
		Root:   image.Root{Blob: image.Blob{Digest: image.DigestOf([]byte("root"))}, Format: image.SquashFS},
		Layers: []image.Root{{Format: image.SquashFS}, {Format: image.EROFS}},
	}
	if got, want := modulesForRoot(m.Roots()...), []string{"nbd", "loop", "dm_mod", "overlay", "squashfs", "erofs"}; !slices.Equal(got, want) {
		t.Errorf("for an EROFS layer over SquashFS it loads %v, want %v", got, want)
	}
}

func TestTheLeaseIsAskedForAsTheFirmwareDid(t *testing.T) {
	mac := net.HardwareAddr{0x52, 0x54, 0, 0x12, 0x34, 0x56}
	discover, err := dhcpv4.NewDiscovery(mac, identifier(mac))
	if err != nil {
		t.Fatal(err)
	}
	// RFC 2132, section 9.14: hardware type 1 (Ethernet) and the MAC, as iPXE sends.
	if got := discover.Options.Get(dhcpv4.OptionClientIdentifier); !bytes.Equal(got, []byte{1, 0x52, 0x54, 0, 0x12, 0x34, 0x56}) {
		t.Errorf("the client identifier is %x", got)
	}
}

func TestALeaseIsReadStrictly(t *testing.T) {
	ack := func(modifiers ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
		m, err := dhcpv4.New(modifiers...)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	n, err := readLease("eth0", ack(dhcpv4.WithYourIP(net.IPv4(10, 9, 1, 5)), dhcpv4.WithNetmask(net.CIDRMask(16, 32)), dhcpv4.WithRouter(net.IPv4(10, 9, 0, 1)),
		dhcpv4.WithDNS(net.IPv4(10, 9, 0, 2), net.IPv4(10, 9, 0, 3)), dhcpv4.WithOption(dhcpv4.OptDomainName("site.example"))))
	if err != nil {
		t.Fatal(err)
	}
	if n.Address != netip.MustParsePrefix("10.9.1.5/16") || n.Gateway != netip.MustParseAddr("10.9.0.1") {
		t.Errorf("got %+v", n)
	}
	if got, want := resolvConf(n), "search site.example\nnameserver 10.9.0.2\nnameserver 10.9.0.3\n"; got != want {
		t.Errorf("resolv.conf is %q, want %q", got, want)
	}
	for _, bad := range []*dhcpv4.DHCPv4{
		ack(dhcpv4.WithNetmask(net.CIDRMask(16, 32))),
		ack(dhcpv4.WithYourIP(net.IPv4(10, 9, 1, 5))),
		ack(dhcpv4.WithYourIP(net.IPv4(10, 9, 1, 5)), dhcpv4.WithNetmask(net.IPMask{255, 0, 255, 0})),
	} {
		if n, err := readLease("eth0", bad); err == nil {
			t.Errorf("%s was taken as %+v", bad.Summary(), n)
		}
	}
}

func TestTheMachinesOwnFilesAreWritten(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"etc", "root"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	shadow := "root:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n"
	if err := os.WriteFile(filepath.Join(root, "etc/shadow"), []byte(shadow), 0o640); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "etc/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	n := &network{Lease: boot.Lease{Address: netip.MustParsePrefix("10.9.1.5/16")}, Nameservers: []netip.Addr{netip.MustParseAddr("10.9.0.2")}}
	w := boot.Welcome{Name: "n7", Session: "s", RootPasswordHash: "$y$j9T$abc", AuthorizedKeys: []string{"ssh-ed25519 AAAA a", "ssh-ed25519 BBBB b"}}
	if err := writeFiles(root, w, n); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"etc/hostname":              "n7\n",
		"etc/hosts":                 "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n10.9.1.5 n7\n",
		"etc/resolv.conf":           "nameserver 10.9.0.2\n",
		"etc/shadow":                "root:$y$j9T$abc:20000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",
		"root/.ssh/authorized_keys": "ssh-ed25519 AAAA a\nssh-ed25519 BBBB b\n",
	} {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(got) != want {
			t.Errorf("%s is %q (%v), want %q", path, got, err, want)
		}
	}
	if text, _ := os.ReadFile(outside); string(text) != "untouched" {
		t.Error("a link of the image was followed")
	}
	for path, want := range map[string]os.FileMode{"etc/shadow": 0o640, "root/.ssh": 0o700, "root/.ssh/authorized_keys": 0o600} {
		if info, err := os.Stat(filepath.Join(root, path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v (%v), want %v", path, info.Mode(), err, want)
		}
	}
	id, _ := os.ReadFile(filepath.Join(root, "etc/machine-id"))
	if len(id) != 33 || strings.Contains(string(id), "s\n") {
		t.Errorf("machine-id is %q, want 32 hexadecimal digits", id)
	}
}

func TestTheNodeAgentIsToldWhoItIs(t *testing.T) {
	w := boot.Welcome{Name: "n7", Agent: &boot.Agent{Server: "10.9.0.1:7443", Generation: 12, Labels: map[string]string{"zone": "z", "rack": "r1"}, Adapters: []api.MachineAdapter{
		{PCI: "0000:3b:00.0", Cell: "lan1", VirtualFunctions: 7}, {PCI: "0000:af:00.0", Cell: "ib0"},
	}}}
	n := &network{Lease: boot.Lease{Address: netip.MustParsePrefix("10.9.1.5/16")}}
	got := strings.Join(agentArguments("/run/nearmetal/agent/nearmetal", w, n, 5<<30, false, "52:54:00:00:00:01", "eth1"), " ")
	want := "/run/nearmetal/agent/nearmetal agent --server 10.9.0.1:7443 --name n7 --state /var/lib/nearmetal " +
		"--underlay 10.9.1.5 --boot-generation 12 --memory 5120MiB --in-ram --trunk-interface eth1 " +
		"--fabric lan1=0000:3b:00.0 --virtual-functions 0000:3b:00.0=7 --fabric ib0=0000:af:00.0 --label rack=r1 --label zone=z"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	w.Purpose = api.BootMember // its users' programs get no functions of adapters from it, nor does anybody else
	got = strings.Join(agentArguments("/run/nearmetal/agent/nearmetal", w, n, 5<<30, false, "52:54:00:00:00:01", ""), " ")
	if !strings.HasSuffix(got, "--boot-generation 12 --memory 5120MiB --in-ram --as-member 52:54:00:00:00:01") {
		t.Errorf("on a machine that is a member it is told: %s", got)
	}
}

func TestOnlyTheRightAgentBinaryIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nearmetal")
	blob := image.Blob{Digest: image.DigestOf([]byte("program")), SizeBytes: 7}
	if err := saveVerified(path, strings.NewReader("program"), false, blob); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for _, wrong := range []string{"progrbm", "progra", "program and more", ""} {
		if err := saveVerified(path, strings.NewReader(wrong), false, blob); !errors.Is(err, image.ErrDigest) {
			t.Errorf("%q: got %v, want a digest mismatch", wrong, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%q was left there", wrong)
		}
	}
}

func TestTheNodeAgentComesFromWhereItCostsLeast(t *testing.T) {
	program := bytes.Repeat([]byte("program "), 1000)
	var packed bytes.Buffer
	compressor := gzip.NewWriter(&packed)
	_, _ = compressor.Write(program)
	_ = compressor.Close()
	blob := image.Blob{Digest: image.DigestOf(program), SizeBytes: int64(len(program))}
	small := image.Blob{Digest: image.DigestOf(packed.Bytes()), SizeBytes: int64(packed.Len())}
	for _, c := range []struct {
		name string
		has  map[string][]byte
		want string
	}{
		{"compressed", map[string][]byte{small.Digest.Hex(): packed.Bytes(), blob.Digest.Hex(): program}, "/images/" + small.Digest.Hex()},
		{"as a blob", map[string][]byte{blob.Digest.Hex(): program}, "/images/" + blob.Digest.Hex()},
		{"from the boot API", map[string][]byte{"agent": program}, boot.AgentBinaryPath},
		{"from the boot API where the blobs are wrong", map[string][]byte{small.Digest.Hex(): program, blob.Digest.Hex(): packed.Bytes(), "agent": program}, boot.AgentBinaryPath},
	} {
		t.Run(c.name, func(t *testing.T) {
			last := ""
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				data, ok := c.has[filepath.Base(r.URL.Path)]
				if !ok {
					http.NotFound(w, r)
					return
				}
				last = r.URL.Path
				_, _ = w.Write(data)
			}))
			defer server.Close()
			a := &Agent{
				log: slog.New(slog.DiscardHandler), images: server.Client(), args: boot.Arguments{Images: server.URL + "/images/"},
				calls: &calls{base: server.URL, client: server.Client()},
			}
			path := filepath.Join(t.TempDir(), "nearmetal")
			if err := a.fetchAgent(t.Context(), path, &boot.Agent{Binary: blob, Gzip: &small}); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, program) || last != c.want {
				t.Errorf("got %d bytes from %s (%v), want %d from %s", len(got), last, err, len(program), c.want)
			}
		})
	}
}

func TestKernelEventsTellWhatToLoad(t *testing.T) {
	message := []byte("add@/devices/pci0000:00/0000:00:02.0/virtio0\x00ACTION=add\x00SUBSYSTEM=virtio\x00MODALIAS=virtio:d00000001v00001AF4\x00SEQNUM=900\x00")
	if event := parseUevent(message); event["ACTION"] != "add" || event["MODALIAS"] != "virtio:d00000001v00001AF4" {
		t.Errorf("got %q", event)
	}
	if event := parseUevent(nil); len(event) > 0 {
		t.Errorf("an empty event gives %q", event)
	}
}

func TestDevicesTheBootWaitsForComeFirst(t *testing.T) {
	sys := t.TempDir()
	for i, alias := range []string{
		"acpi:PNP0C0C:", "pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01", "pci:v00008086d000010D3sv00008086sd00000000bc02sc00i00",
		"virtio:d00000001v00001AF4", "acpi:PNP0C0C:",
	} {
		dir := filepath.Join(sys, "devices", string(rune('a'+i)))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "modalias"), []byte(alias+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := presentDevices(sys)
	if len(got) != 4 || !strings.Contains(got[0], "bc02") || !strings.HasPrefix(got[1], "virtio:d00000001") || !strings.Contains(got[2], "bc01") {
		t.Errorf("the order is %v", got)
	}
}

func TestOnlyAPressedPowerButtonEndsTheMachine(t *testing.T) {
	event := func(kind, code uint16, value uint32) []byte {
		b := make([]byte, inputEventBytes)
		binary.NativeEndian.PutUint16(b[16:], kind)
		binary.NativeEndian.PutUint16(b[18:], code)
		binary.NativeEndian.PutUint32(b[20:], value)
		return b
	}
	if !isPowerButton(event(inputKey, inputKeyPower, 1)) {
		t.Error("a pressed power button is not noticed")
	}
	for _, other := range [][]byte{event(inputKey, inputKeyPower, 0), event(inputKey, 30, 1), event(0, inputKeyPower, 1)} {
		if isPowerButton(other) {
			t.Errorf("%x was taken for the power button", other)
		}
	}
}

func TestStagesAreReportedInOrderUntilHeard(t *testing.T) {
	var got []boot.StageReport
	var obeyed []string
	failures := 1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failures > 0 {
			failures--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var s boot.StageReport
		_ = json.NewDecoder(r.Body).Decode(&s)
		got = append(got, s)
		_ = json.NewEncoder(w).Encode(boot.Instruction{Do: "continue", Message: string(s.Stage)})
	}))
	defer server.Close()
	r := newReporter(&calls{base: server.URL, session: "s", client: server.Client()}, slog.New(slog.DiscardHandler), func(i boot.Instruction) {
		obeyed = append(obeyed, i.Message)
	})
	go r.run(t.Context())
	r.stage(boot.StageReport{Stage: api.StageKernel})
	r.stage(boot.StageReport{Stage: api.StageRoot, RootBytes: 5})
	r.problem(errors.New("no room"))
	select {
	case <-r.told():
	case <-time.After(20 * time.Second):
		t.Fatal("not all was told")
	}
	if len(got) != 3 || got[0].Stage != api.StageKernel || got[0].AgoSeconds < 0.5 || got[1].RootBytes != 5 || got[2].Stage != api.StageAgent || got[2].Problem != "no room" {
		t.Errorf("the server heard %+v", got)
	}
	if want := []string{"kernel", "root", "agent"}; !slices.Equal(obeyed, want) {
		t.Errorf("answers were handed on for %v, want %v", obeyed, want)
	}
}

func TestAMachineThatIsReadySaysSoUntilThatIsWrittenDown(t *testing.T) {
	heard := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		heard++
		answer := boot.Instruction{Do: "wait"}
		if heard == 2 {
			answer.Do = "continue"
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	r := newReporter(&calls{base: server.URL, session: "s", client: server.Client()}, slog.New(slog.DiscardHandler), func(boot.Instruction) {})
	go r.run(t.Context())
	r.stage(boot.StageReport{Stage: api.StageReady, Local: true})
	select {
	case <-r.told():
	case <-time.After(20 * time.Second):
		t.Fatal("not all was told")
	}
	if heard != 2 {
		t.Errorf("it was said %d times", heard)
	}
}

func TestARefusalIsReadForPeople(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"title":"Forbidden","detail":"the boot token is of an earlier boot"}`))
	}))
	defer server.Close()
	err := (&calls{base: server.URL, client: server.Client()}).post(t.Context(), boot.HelloPath, boot.Hello{}, nil)
	if err == nil || !strings.Contains(err.Error(), "the boot token is of an earlier boot") || !isFinal(err) {
		t.Errorf("got %v, final %v", err, isFinal(err))
	}
}

func TestARootIsRefusedWhereItDoesNotFit(t *testing.T) {
	available, err := memory("MemAvailable")
	if err != nil || available <= 0 {
		t.Fatalf("available memory: %d, %v", available, err)
	}
	// More than any machine has; it is refused before anything is mounted.
	err = makeImageDir(1<<60, nil)
	if err == nil || !strings.Contains(err.Error(), "MiB of memory") {
		t.Errorf("got %v", err)
	}
}

// Neither the server alone nor the kernel's command line alone makes a machine erase its disks.
func TestNothingIsErasedUnlessServerAndCommandLineAskForIt(t *testing.T) {
	for name, a := range map[string]*Agent{
		"no order":                       {args: boot.Arguments{Purpose: api.BootClean}},
		"another purpose of the command": {args: boot.Arguments{Purpose: api.BootInspect}, welcome: boot.Welcome{Clean: &boot.CleanOrder{}}},
	} {
		a.log = slog.New(slog.DiscardHandler)
		if err := a.clean(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing is erased") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
