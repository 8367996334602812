package bootagent_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/initrd"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/testbed/debiantree"
)

const (
	guestMAC = "52:54:00:12:34:56"
	// hostAddress is where QEMU's user-mode network shows the host's loopback.
	hostAddress = "10.0.2.2"
	// guestDeadline cuts off a machine that does not get on; it boots in about 10 s.
	guestDeadline = 4 * time.Minute
)

// site is a boot server for one machine, made of nothing but the contract.
type site struct {
	t       *testing.T
	welcome boot.Welcome
	args    boot.Arguments
	blobs   map[string][]byte
	secret  []byte
	// sent counts bytes of blobs, by digits.
	mu     sync.Mutex
	sent   map[string]int64
	stages chan boot.StageReport
	report chan boot.Report
	// instruction answers reports.
	instruction atomic.Pointer[boot.Instruction]
	servers     []*httptest.Server
}

// newSite serves an image; agent is the program that stands in for the node agent.
func newSite(t *testing.T, purpose api.BootPurpose, manifest *image.Manifest, blobs map[string][]byte, agent []byte) *site {
	t.Helper()
	s := &site{
		t: t, blobs: blobs, secret: []byte("site secret"), sent: map[string]int64{},
		stages: make(chan boot.StageReport, 100), report: make(chan boot.Report, 100),
	}
	authority, err := trust.Open(t.TempDir(), hostAddress)
	if err != nil {
		t.Fatal(err)
	}
	text, digest, err := manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	key, err := image.SigningKey(s.secret)
	if err != nil {
		t.Fatal(err)
	}
	s.welcome = boot.Welcome{
		Session: "the-session", Name: "m1", Purpose: purpose, Manifest: text, Signature: image.Sign(key, text), PublicKey: image.PublicKey(key),
		RootPasswordHash: "$6$x$y", Time: time.Now(), HealthDeadline: 20 * time.Second,
	}
	if agent != nil {
		s.blobs[image.DigestOf(agent).Hex()] = agent
		s.welcome.Agent = &boot.Agent{
			Binary: image.Blob{Digest: image.DigestOf(agent), SizeBytes: int64(len(agent))}, Certificate: api.NodeCertificate{Certificate: "a certificate", Pin: "a pin", RenewInSeconds: 60},
			Server: hostAddress + ":1", Labels: map[string]string{"rack": "r1", "zone": "z"}, Generation: 7,
		}
	}
	// Not httptest's own TLS: it would show its own certificate too.
	secure := httptest.NewUnstartedServer(s.bootAPI())
	secure.Listener = tls.NewListener(secure.Listener, authority.ServerTLS())
	secure.Start()
	plain := httptest.NewServer(http.HandlerFunc(s.serveBlob))
	s.servers = []*httptest.Server{secure, plain}
	t.Cleanup(s.close)
	token := boot.Seal(s.secret, boot.TokenClaims{MAC: guestMAC, Machine: "uid", Generation: 7, Purpose: purpose, Port: "eth0", ExpiresAt: time.Now().Add(time.Hour)})
	s.args = boot.Arguments{
		Server: hostAddress + portOf(secure), Pin: authority.Pin().String(), Token: token, MAC: guestMAC, Purpose: purpose, Manifest: digest,
		Images: "http://" + hostAddress + portOf(plain) + "/images/", Time: time.Now(),
	}
	return s
}

func portOf(s *httptest.Server) string {
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return ":" + port
}

// close cuts the servers off, connections under way too.
func (s *site) close() {
	for _, server := range s.servers {
		server.CloseClientConnections()
		server.Listener.Close()
	}
}

func (s *site) bootAPI() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+boot.HelloPath, func(w http.ResponseWriter, r *http.Request) {
		var hello boot.Hello
		_ = json.NewDecoder(r.Body).Decode(&hello)
		if claims, err := boot.Open(s.secret, hello.Token, time.Now()); err != nil || claims.MAC != guestMAC {
			http.Error(w, fmt.Sprint("token refused: ", err), http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(s.welcome)
	})
	mux.HandleFunc("POST "+boot.StagePath, func(w http.ResponseWriter, r *http.Request) {
		var stage boot.StageReport
		_ = json.NewDecoder(r.Body).Decode(&stage)
		if r.Header.Get("Authorization") != "Bearer the-session" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		s.stages <- stage
	})
	mux.HandleFunc("POST "+boot.ReportPath, func(w http.ResponseWriter, r *http.Request) {
		var report boot.Report
		_ = json.NewDecoder(r.Body).Decode(&report)
		s.report <- report
		if next := s.instruction.Load(); next != nil {
			_ = json.NewEncoder(w).Encode(next)
		}
	})
	return mux
}

func (s *site) serveBlob(w http.ResponseWriter, r *http.Request) {
	digits := filepath.Base(r.URL.Path)
	data, ok := s.blobs[digits]
	if !ok {
		http.NotFound(w, r)
		return
	}
	counted := &countingWriter{ResponseWriter: w}
	http.ServeContent(counted, r, "", time.Time{}, bytes.NewReader(data))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[digits] += counted.bytes
}

type countingWriter struct {
	http.ResponseWriter
	bytes int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.bytes += int64(n)
	return n, err
}

// machine is a running guest.
type machine struct {
	t       *testing.T
	cmd     *exec.Cmd
	monitor net.Conn
	console string
	// lines are what it prints on its second serial port; closed at its end.
	lines chan string
	begun time.Time
}

// start boots a machine with a kernel and initrd, as a loader would; more are QEMU's arguments besides.
func start(t *testing.T, tr debiantree.Tree, initrdFile, arguments string, more ...string) *machine {
	t.Helper()
	dir := t.TempDir()
	monitor := filepath.Join(dir, "monitor")
	m := &machine{t: t, console: filepath.Join(dir, "console"), lines: make(chan string, 100000), begun: time.Now()}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), guestDeadline)
	args := append([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "1536",
		"-kernel", tr.Path("vmlinuz"), "-initrd", initrdFile,
		"-append", "console=ttyS0 mitigations=off 8250.nr_uarts=2 " + arguments,
		"-netdev", "user,id=net0,restrict=off", "-device", "virtio-net-pci,netdev=net0,mac=" + guestMAC + ",id=nic0",
		"-serial", "file:" + m.console, "-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output",
		"-chardev", "socket,id=monitor,path=" + monitor + ",server=on,wait=off", "-mon", "chardev=monitor,mode=readline",
		"-device", "virtio-rng-pci",
	}, more...)
	m.cmd = exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.cmd.Stderr = os.Stderr
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(m.lines)
		scanner := bufio.NewScanner(output)
		for scanner.Scan() {
			m.lines <- strings.TrimRight(scanner.Text(), "\r")
		}
		_, _ = io.Copy(io.Discard, output)
		_ = m.cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		for range m.lines {
		}
		if t.Failed() || os.Getenv("NEARMETAL_SHOW_CONSOLE") != "" {
			text, _ := os.ReadFile(m.console)
			lines := strings.Split(string(text), "\n")
			if keep := os.Getenv("NEARMETAL_SHOW_CONSOLE"); strings.HasPrefix(keep, "/") {
				_ = os.WriteFile(keep, text, 0o644)
			}
			t.Logf("end of the console:\n%s", strings.Join(lines[max(0, len(lines)-80):], "\n"))
		}
	})
	for {
		conn, err := net.Dial("unix", monitor)
		if err == nil {
			m.monitor = conn
			break
		}
		if ctx.Err() != nil || m.cmd.ProcessState != nil {
			t.Fatal("QEMU's monitor does not answer")
		}
	}
	return m
}

// tell gives QEMU's monitor a command.
func (m *machine) tell(command string) {
	if _, err := io.WriteString(m.monitor, command+"\n"); err != nil {
		m.t.Fatal(err)
	}
}

// await returns the machine's next line that begins so.
func (m *machine) await(prefix string) string {
	m.t.Helper()
	for line := range m.lines {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return rest
		}
	}
	m.t.Fatalf("the machine ended before it said %q", prefix)
	return ""
}

// stage waits for the report of a stage.
func (s *site) stage(m *machine, want api.BootStage) boot.StageReport {
	s.t.Helper()
	for {
		select {
		case r := <-s.stages:
			s.t.Logf("%6.2f s: stage %s ended %.2f s ago, %.1f of %.1f MiB of the root read; problem %q", time.Since(m.begun).Seconds(), r.Stage, r.AgoSeconds,
				float64(r.ReadBytes)/(1<<20), float64(r.RootBytes)/(1<<20), r.Problem)
			if r.Stage == want {
				return r
			}
		case <-time.After(guestDeadline):
			s.t.Fatalf("the machine never reported the stage %s", want)
		}
	}
}

// sums are the sums of the root's files as the machine reads them.
func (s *site) sums(m *machine) string {
	s.t.Helper()
	var got strings.Builder
	for line := range m.lines {
		if sum, ok := strings.CutPrefix(line, "sum "); ok {
			got.WriteString(sum + "\n")
		} else if rest, ok := strings.CutPrefix(line, "done "); ok {
			if rest != "detached" {
				s.t.Errorf("the network device is still attached: %s", rest)
			}
			break
		}
	}
	return got.String()
}

// buildInitrd makes the initrd with the boot agent as it is in the tree now.
func buildInitrd(t *testing.T, tr debiantree.Tree, small bool) string {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "nearmetal-boot")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "github.com/nearmetal/nearmetal/cmd/nearmetal-boot")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the boot agent: %v\n%s", err, out)
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(dir, "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	begun := time.Now()
	result, err := initrd.Build(t.Context(), file, initrd.Config{Root: tr.Path("tree"), Init: data, Small: small})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("initrd: %.1f MiB, %.1f MiB unpacked, %d modules, made in %v; boot agent %.1f MiB", float64(result.SizeBytes)/(1<<20),
		float64(result.UnpackedBytes)/(1<<20), len(result.Modules), time.Since(begun).Round(time.Millisecond), float64(len(data))/(1<<20))
	return file.Name()
}

// debianImage is the tree's root as an image.
func debianImage(t *testing.T, tr debiantree.Tree) (*image.Manifest, map[string][]byte) {
	t.Helper()
	data, err := os.ReadFile(tr.Path("root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	blob, list, err := image.MakeChunks(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	chunks := image.Blob{Digest: image.DigestOf(list), SizeBytes: int64(len(list))}
	manifest := &image.Manifest{
		Environment: "debian", Architecture: "x86_64",
		Root: image.Root{Blob: blob, Format: image.EROFS, Chunks: chunks, ChunkBytes: image.ChunkBytes},
	}
	return manifest, map[string][]byte{blob.Digest.Hex(): data, chunks.Digest.Hex(): list}
}

func needGuests(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUESTS", "make test-guest")
}

// standIn is run in place of the node agent: it tells when the root is local, waits until the network is cut, reads every file of the
// root with an empty cache, and asks the first process to switch the machine off.
const standIn = `#!/bin/sh
exec >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 raw -echo
echo "arguments $*"
i=/var/lib/nearmetal/nodes/m1/identity.json
echo "id $(grep -c 'BEGIN PRIVATE KEY' $i) $(grep -c '"certificate": "a certificate"' $i) $(grep -c '"node": "m1"' $i) $(hostname) $(stat -c %a $i)"
echo "shadow $(grep '^root:' /etc/shadow)"
while [ ! -e /run/nearmetal/image/whole ]; do sleep 0.1; done
echo "local"
while [ "$(cat /sys/class/net/e*/carrier)" = 1 ]; do sleep 0.1; done
echo 3 >/proc/sys/vm/drop_caches
cd /run/nearmetal/layers/0
find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sed 's/^/sum /'
echo "done $(ls /sys/block/nbd0/pid 2>/dev/null || echo detached)"
kill -TERM 1
sleep 60
`

func TestAMachineBootsLazilyAndEndsWithALocalRoot(t *testing.T) {
	needGuests(t)
	tr := debiantree.Ensure(t)
	manifest, blobs := debianImage(t, tr)
	s := newSite(t, api.BootEnvironment, manifest, blobs, []byte(standIn))
	s.welcome.Peers = []string{s.args.Images} // as if another machine served there, too
	m := start(t, tr, buildInitrd(t, tr, true), s.args.Encode())
	s.stage(m, api.StageKernel)
	s.stage(m, api.StageRoot)
	agent := s.stage(m, api.StageAgent)
	if agent.RootBytes != manifest.Root.SizeBytes || agent.ReadBytes*4 > agent.RootBytes {
		t.Errorf("%d of %d bytes of the root were read before the agent ran, want less than a quarter", agent.ReadBytes, agent.RootBytes)
	}
	if got := m.await("arguments "); !strings.HasPrefix(got, "agent --server 10.0.2.2:1 --name m1 --state /var/lib/nearmetal "+
		"--underlay 10.0.2.15 --boot-generation 7 --memory ") || !strings.HasSuffix(got, "MiB --label rack=r1 --label zone=z") {
		t.Errorf("the node agent's arguments are %q", got)
	}
	if got := m.await("id "); got != "1 1 1 m1 600" {
		t.Errorf("key, certificate and node of the identity, host name and mode of its file are %q", got)
	}
	if got := m.await("shadow "); !strings.HasPrefix(got, "root:$6$x$y:") {
		t.Errorf("root's password is %q", got)
	}
	m.await("local")
	if ready := s.stage(m, api.StageReady); !ready.Local || ready.PeerBytes != manifest.Root.SizeBytes {
		t.Errorf("the ready report is %+v; want all %d bytes from another machine", ready, manifest.Root.SizeBytes)
	}
	s.mu.Lock()
	sent := s.sent[manifest.Root.Digest.Hex()]
	s.mu.Unlock()
	t.Logf("%d bytes of a root of %d were sent", sent, manifest.Root.SizeBytes)
	if sent < manifest.Root.SizeBytes || sent > manifest.Root.SizeBytes*21/20 {
		t.Errorf("%d bytes of the root were sent for a root of %d", sent, manifest.Root.SizeBytes)
	}
	// From here on the machine is alone.
	m.tell("set_link nic0 off")
	s.close()
	want, err := os.ReadFile(tr.Path("sums"))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.sums(m); got != string(want) {
		t.Errorf("the files read without a network differ from those of the image: %d bytes of sums, want %d", len(got), len(want))
	}
	for range m.lines {
	}
	if console, _ := os.ReadFile(m.console); !bytes.Contains(console, []byte("Power down")) {
		t.Error("the machine did not power off in order")
	}
	t.Logf("%6.2f s: off", time.Since(m.begun).Seconds())
}

func TestAMachineIsInspectedWithoutARoot(t *testing.T) {
	needGuests(t)
	tr := debiantree.Ensure(t)
	s := newSite(t, api.BootInspect, &image.Manifest{Environment: "inspect", Architecture: "x86_64"}, map[string][]byte{}, nil)
	s.instruction.Store(&boot.Instruction{Do: "wait", RetrySeconds: 1, Message: "known, wait for an order"})
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 64<<20); err != nil {
		t.Fatal(err)
	}
	m := start(t, tr, buildInitrd(t, tr, false), s.args.Encode(), "-drive", "file="+disk+",format=raw,if=virtio", "-smbios", "type=11,value=nearmetal-enroll:secret")
	s.stage(m, api.StageKernel)
	report := <-s.report
	t.Logf("%6.2f s: inspected", time.Since(m.begun).Seconds())
	hw := report.Hardware
	if hw.CPU.Cores != 2 || len(hw.Disks) != 1 || hw.Disks[0].SizeBytes != 64<<20 || len(hw.NICs) != 1 || hw.NICs[0].MAC != guestMAC || hw.EnrollmentToken != "secret" {
		t.Errorf("it found %+v", hw)
	}
	if len(report.Health) == 0 {
		t.Error("no health check was made")
	}
	for _, result := range report.Health {
		t.Logf("check %s: ok %v, %s (%.2f s)", result.Check, result.OK, result.Message, result.DurationSeconds)
	}
	s.instruction.Store(&boot.Instruction{Do: "poweroff"})
	for range m.lines {
	}
	if console, _ := os.ReadFile(m.console); !bytes.Contains(console, []byte("known, wait for an order")) || !bytes.Contains(console, []byte("Power down")) {
		t.Error("the console lacks the server's message, or the machine did not power off in order")
	}
}

func TestARootThatIsNotWhatWasBuiltIsRefusedInWords(t *testing.T) {
	needGuests(t)
	tr := debiantree.Ensure(t)
	manifest, blobs := debianImage(t, tr)
	// The superblock stays right; the first chunk of the directory tree's end is not.
	damaged := bytes.Clone(blobs[manifest.Root.Digest.Hex()])
	damaged[len(damaged)-1] ^= 1
	damaged[5] ^= 1
	blobs[manifest.Root.Digest.Hex()] = damaged
	s := newSite(t, api.BootEnvironment, manifest, blobs, nil)
	m := start(t, tr, buildInitrd(t, tr, true), s.args.Encode())
	problem := s.stage(m, api.StageRoot).Problem
	if !strings.Contains(problem, "chunk list") || !strings.Contains(problem, "digest mismatch") {
		t.Errorf("the machine reports the problem %q", problem)
	}
	m.tell("quit")
}

func TestARootOnADiskSurvivesTheNetworkToo(t *testing.T) {
	needGuests(t)
	tr := debiantree.Ensure(t)
	manifest, blobs := debianImage(t, tr)
	s := newSite(t, api.BootEnvironment, manifest, blobs, []byte(standIn))
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 256<<20); err != nil {
		t.Fatal(err)
	}
	s.args.Disk = "/dev/vda"
	m := start(t, tr, buildInitrd(t, tr, true), s.args.Encode(), "-drive", "file="+disk+",format=raw,if=virtio,cache=unsafe")
	if ready := s.stage(m, api.StageReady); !ready.Local || ready.Problem != "" {
		t.Fatalf("the ready report is %+v", ready)
	}
	m.await("local")
	m.tell("set_link nic0 off")
	s.close()
	want, err := os.ReadFile(tr.Path("sums"))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.sums(m); got != string(want) {
		t.Errorf("the files read from the disk differ from those of the image: %d bytes of sums, want %d", len(got), len(want))
	}
}
