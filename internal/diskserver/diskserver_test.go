package diskserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// TestMain is the process of a disk, too: tests start their own program as one.
func TestMain(m *testing.M) {
	if os.Args[0] == Name {
		_ = Hold()
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const imageBytes = 4 << 20

var ids = api.IDRange{First: 1 << 20, Count: 1 << 16}

// place is where the processes of a test are.
type place struct {
	t            *testing.T
	dir, program string
}

func newPlace(t *testing.T) place {
	t.Helper()
	needs.Root(t, "starts processes as other users")
	needs.Program(t, "qemu-io")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The processes are other users, and find sockets by their whole path.
	dir, err := os.MkdirTemp("/run", "disk-test-")
	if err != nil {
		t.Fatal(err)
	}
	p := place{t, dir, program}
	t.Cleanup(func() {
		all, _ := filepath.Glob(filepath.Join(dir, "*", pidFile))
		for _, file := range all {
			if err := End(context.Background(), filepath.Dir(file)); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p place) at(name string) string { return filepath.Join(p.dir, name) }

// image is a file of a size that a disk serves.
func (p place) image() string {
	p.t.Helper()
	path := p.at("image")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, imageBytes)); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func (p place) serve(image string) Serve {
	return Serve{Program: p.program, Dir: p.at("serve"), Image: image, UserIDs: ids}
}

func (p place) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p place) pid(dir string) int {
	p.t.Helper()
	pid, _, err := found(dir)
	p.must(err)
	return pid
}

// io runs commands of qemu-io on the disk at a socket, and returns what it printed.
func (p place) io(socket string, commands ...string) (string, error) {
	var args []string
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	out, err := exec.CommandContext(p.t.Context(), "qemu-io", append(args, "-f", "raw", "nbd+unix:///disk?socket="+socket)...).CombinedOutput()
	return string(out), err
}

func TestAnImageIsServedByAProcessThatOutlivesItsMaker(t *testing.T) {
	p := newPlace(t)
	s := p.serve(p.image())
	p.must(s.Ensure(t.Context()))
	first := p.pid(s.Dir)
	if out, err := p.io(Socket(s.Dir), "write -P 7 1M 64k", "flush", "read -P 7 1M 64k"); err != nil || strings.Contains(out, "failed") {
		t.Fatalf("%v\n%s", err, out)
	}
	content, err := os.ReadFile(s.Image)
	p.must(err)
	if !bytes.Equal(content[1<<20:1<<20+65536], bytes.Repeat([]byte{7}, 65536)) || content[0] != 0 {
		t.Error("the image has other content than was written")
	}
	p.must(s.Ensure(t.Context()))
	if again := p.pid(s.Dir); again != first {
		t.Errorf("process %d became %d", first, again)
	}
	s.ReadOnly = true
	p.must(s.Ensure(t.Context()))
	if p.pid(s.Dir) == first {
		t.Error("one that writes still serves what is to be read-only")
	}
	if out, err := p.io(Socket(s.Dir), "write -P 8 0 4k"); err == nil && !strings.Contains(out, "ermission") && !strings.Contains(out, "read-only") && !strings.Contains(out, "failed") {
		t.Errorf("it was written to: %s", out)
	}
	p.must(End(t.Context(), s.Dir))
	p.must(End(t.Context(), s.Dir))
	if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory is left: %v", err)
	}
}

// What reads what guests make of QEMU has nothing that it could give away.
func TestAProcessHasNothingButItsImage(t *testing.T) {
	p := newPlace(t)
	s := p.serve(p.image())
	p.must(s.Ensure(t.Context()))
	pid := p.pid(s.Dir)
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	p.must(err)
	fields := map[string]string{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	user := strconv.Itoa(int(ids.First + ids.Count - 1))
	for name, want := range map[string]string{
		"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "NoNewPrivs": "1", "Groups": "",
		"Uid": strings.Join([]string{user, user, user, user}, "\t"), "Gid": strings.Join([]string{user, user, user, user}, "\t"),
	} {
		if fields[name] != want {
			t.Errorf("%s: %q, want %q", name, fields[name], want)
		}
	}
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	p.must(err)
	for _, task := range tasks {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + task.Name() + "/status")
		if err == nil && !strings.Contains(string(status), "CapEff:\t0000000000000000") {
			t.Errorf("thread %s has capabilities", task.Name())
		}
	}
	root, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/root")
	p.must(err)
	if !strings.HasSuffix(root, "/fdinfo") {
		t.Errorf("its root is %s", root)
	}
	for _, kind := range []string{"user", "pid", "net", "ipc", "mnt", "uts"} {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		p.must(err)
		if its, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/" + kind); err != nil || its == own {
			t.Errorf("it has the host's namespace %s: %v", its, err)
		}
	}
	var socket unix.Stat_t
	p.must(unix.Lstat(Socket(s.Dir), &socket))
	if socket.Uid != ids.First || socket.Mode&0o777 != 0o600 {
		t.Errorf("the socket is of user %d with mode %o", socket.Uid, socket.Mode&0o777)
	}
}

func TestAProcessThatEndedIsStartedAgain(t *testing.T) {
	p := newPlace(t)
	s := p.serve(p.image())
	p.must(s.Ensure(t.Context()))
	before := p.pid(s.Dir)
	p.must(end(t.Context(), s.Dir))
	if runs, err := Runs(s.Dir); err != nil || runs {
		t.Fatalf("runs: %t, %v", runs, err)
	}
	p.must(s.Ensure(t.Context()))
	if now := p.pid(s.Dir); now == 0 || now == before {
		t.Errorf("process %d became %d", before, now)
	}
	// A file that names another process than its own names none.
	p.must(End(t.Context(), s.Dir))
	p.must(os.MkdirAll(s.Dir, 0o711))
	p.must(os.WriteFile(filepath.Join(s.Dir, pidFile), []byte(strconv.Itoa(os.Getpid())), 0o600))
	if runs, err := Runs(s.Dir); err != nil || runs {
		t.Fatalf("runs: %t, %v", runs, err)
	}
	p.must(s.Ensure(t.Context()))
	if p.pid(s.Dir) == os.Getpid() {
		t.Error("it is this process")
	}
}

// dial connects to a disk, and reads how it begins: it is served then.
func dial(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestTheLatestClientHasTheDiskAlone(t *testing.T) {
	p := newPlace(t)
	s := p.serve(p.image())
	p.must(s.Ensure(t.Context()))
	hello := make([]byte, 18)
	first := dial(t, Socket(s.Dir))
	if _, err := first.Read(hello); err != nil {
		t.Fatal(err)
	}
	second := dial(t, Socket(s.Dir))
	if _, err := second.Read(hello); err != nil {
		t.Fatal(err)
	}
	if n, err := first.Read(hello); err == nil {
		t.Errorf("the first goes on: %d bytes", n)
	}
}

// A node reaches the disk of another by two processes, in a network of their own: the namespace of this test, with two addresses.
func TestADiskIsReachedFromAnotherNode(t *testing.T) {
	p := newPlace(t)
	space, err := netns.New()
	p.must(err)
	t.Cleanup(func() { _ = space.Close() })
	p.must(space.Do(func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() }))
	s := p.serve(p.image())
	p.must(s.Ensure(t.Context()))
	loopback := netip.MustParseAddr("127.0.0.1")
	share := Share{
		Program: p.program, Dir: p.at("share"), UserIDs: ids, Space: space, Listen: netip.AddrPortFrom(loopback, 10809), Clients: []netip.Addr{loopback},
		Sockets: map[string]string{"data": Socket(s.Dir), "other": p.at("nothing")},
	}
	p.must(share.Ensure(t.Context()))
	reach := Reach{Program: p.program, Dir: p.at("reach"), UserIDs: ids, Space: space, Server: share.Listen, Disk: "data"}
	p.must(reach.Ensure(t.Context()))
	if out, err := p.io(Socket(reach.Dir), "write -P 9 2M 64k", "flush", "read -P 9 2M 64k"); err != nil || strings.Contains(out, "failed") {
		t.Fatalf("%v\n%s", err, out)
	}
	if now, err := FoundShare(share.Dir); err != nil || !slices.Equal(now.Disks, []string{"data", "other"}) || !slices.Equal(now.Clients, share.Clients) {
		t.Errorf("found %+v, %v", now, err)
	}
	stranger := Reach{Program: p.program, Dir: p.at("stranger"), UserIDs: ids, Space: space, Server: share.Listen, Disk: "unknown"}
	p.must(stranger.Ensure(t.Context()))
	if out, err := p.io(Socket(stranger.Dir), "read 0 4k"); err == nil {
		t.Errorf("a disk that is not shared was read: %s", out)
	}

	// It is shut out: what it has open ends, and it does not get in again.
	conn := dial(t, Socket(reach.Dir))
	hello := make([]byte, 18)
	if _, err := conn.Read(hello); err != nil {
		t.Fatal(err)
	}
	share.Clients = []netip.Addr{netip.MustParseAddr("127.0.0.2")}
	p.must(share.Ensure(t.Context()))
	if n, err := conn.Read(hello); err == nil {
		t.Errorf("who was shut out reads on: %d bytes", n)
	}
	if out, err := p.io(Socket(reach.Dir), "write -P 3 0 4k"); err == nil {
		t.Errorf("who was shut out wrote: %s", out)
	}
	content, err := os.ReadFile(s.Image)
	p.must(err)
	if content[0] == 3 {
		t.Error("the image has what was written by who was shut out")
	}
	// Nothing of it is reached from the host's network.
	if conn, err := net.DialTimeout("tcp4", share.Listen.String(), time.Second); err == nil {
		_ = conn.Close()
		t.Error("the host reaches what is shared")
	}
}

// A write beyond the limit waits, and a read, which has a limit of its own, is answered before it.
func TestADiskIsHeldToItsLimit(t *testing.T) {
	p := newPlace(t)
	s := p.serve(p.image())
	s.BytesPerSecond = 1 << 10 // the test does not wait for a second burst
	p.must(s.Ensure(t.Context()))
	conn := dial(t, Socket(s.Dir))
	exchange := func(send []byte, answer int) []byte {
		t.Helper()
		if _, err := conn.Write(send); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, answer)
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	exchange(nil, 18)
	exchange([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00"), 10) // flags, and the export's name
	request := func(command, cookie byte, data []byte) []byte {
		head := []byte{0x25, 0x60, 0x95, 0x13, 0, 0, 0, command, 0, 0, 0, 0, 0, 0, 0, cookie, 0, 0, 0, 0, 0, 0, 0, 0}
		return append(binary.BigEndian.AppendUint32(head, burstBytes), data...)
	}
	data := bytes.Repeat([]byte{7}, burstBytes)
	if first := exchange(request(1, 1, data), 16); first[15] != 1 {
		t.Errorf("the first answer is %x", first)
	}
	if _, err := conn.Write(request(1, 2, bytes.Repeat([]byte{8}, burstBytes))); err != nil {
		t.Fatal(err)
	}
	if next := exchange(request(0, 3, nil), 16+burstBytes); next[15] != 3 || !bytes.Equal(next[16:], data) {
		t.Errorf("the answer after a write beyond the limit begins with %x", next[:20])
	}
	s.BytesPerSecond = 0
	p.must(s.Ensure(t.Context()))
	if out, err := p.io(Socket(s.Dir), "read -P 7 0 256k", "write -P 8 0 4M", "write -P 9 0 4M", "read -P 9 0 4M"); err != nil || strings.Contains(out, "failed") {
		t.Errorf("it is held to the limit that it had: %v\n%s", err, out)
	}
}

// A QEMU that a guest has taken over may open one connection after the other, and costs no more than a few.
func TestAMachineOpensSoManyConnectionsAndNoMore(t *testing.T) {
	p := newPlace(t)
	space, err := netns.New()
	p.must(err)
	t.Cleanup(func() { _ = space.Close() })
	p.must(space.Do(func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() }))
	silent, err := net.Listen("unix", p.at("silent"))
	p.must(err)
	t.Cleanup(func() { _ = silent.Close() })
	p.must(os.Chmod(p.at("silent"), 0o666))
	accepted := make(chan net.Conn, 2*mostCarried)
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	loopback := netip.MustParseAddr("127.0.0.1")
	share := Share{
		Program: p.program, Dir: p.at("share"), UserIDs: ids, Space: space, Listen: netip.AddrPortFrom(loopback, 10809), Clients: []netip.Addr{loopback},
		Sockets: map[string]string{"silent": p.at("silent")},
	}
	p.must(share.Ensure(t.Context()))
	reach := Reach{Program: p.program, Dir: p.at("reach"), UserIDs: ids, Space: space, Server: share.Listen, Disk: "silent"}
	p.must(reach.Ensure(t.Context()))
	for range mostCarried {
		dial(t, Socket(reach.Dir))
		<-accepted
	}
	refused := dial(t, Socket(reach.Dir))
	if n, err := refused.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("one connection too many is not closed: %d bytes, %v", n, err)
	}
}
