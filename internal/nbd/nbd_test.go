package nbd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// memory is a device in memory that counts its flushes.
type memory struct {
	mu      sync.Mutex
	content []byte
	syncs   int
	fails   error
	// entered gets a value when a write begins, and goOn lets it go on, if they are set.
	entered, goOn chan struct{}
}

func (m *memory) ReadAt(p []byte, at int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		return 0, m.fails
	}
	return copy(p, m.content[at:]), nil
}

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	if m.entered != nil {
		m.entered <- struct{}{}
		<-m.goOn
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		return 0, m.fails
	}
	return copy(m.content[at:], p), nil
}

func (m *memory) Sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.syncs++
	return m.fails
}

// serve serves a device to the connection that is returned.
func serve(t *testing.T, export Export) (client net.Conn, ended chan error) {
	t.Helper()
	client, server := net.Pipe()
	ended = make(chan error, 1)
	go func() { ended <- Serve(t.Context(), server, export) }()
	t.Cleanup(func() { _ = client.Close() })
	return client, ended
}

// wire writes and reads numbers as the protocol has them.
type wire struct {
	t *testing.T
	net.Conn
}

func (w wire) send(values ...any) {
	w.t.Helper()
	var out bytes.Buffer
	for _, v := range values {
		if err := binary.Write(&out, binary.BigEndian, v); err != nil {
			w.t.Fatal(err)
		}
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		w.t.Fatal(err)
	}
}

func (w wire) expect(values ...any) {
	w.t.Helper()
	var want bytes.Buffer
	for _, v := range values {
		if err := binary.Write(&want, binary.BigEndian, v); err != nil {
			w.t.Fatal(err)
		}
	}
	got := make([]byte, want.Len())
	if _, err := io.ReadFull(w, got); err != nil {
		w.t.Fatalf("expected %x: %v", want.Bytes(), err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		w.t.Fatalf("got %x, want %x", got, want.Bytes())
	}
}

const size = 1 << 20

// begun is a connection on which requests can be sent.
func begun(t *testing.T, export Export) (wire, chan error) {
	t.Helper()
	conn, ended := serve(t, export)
	w := wire{t, conn}
	flags := uint16(0b1101)
	if export.ReadOnly {
		flags |= 2
	}
	w.expect([]byte("NBDMAGICIHAVEOPT"), uint16(3))
	w.send(uint32(3), []byte("IHAVEOPT"), uint32(optionExportName), uint32(0))
	w.expect(uint64(export.SizeBytes), flags)
	return w, ended
}

func (w wire) request(command, flags uint16, cookie, offset uint64, length uint32, data []byte) {
	w.t.Helper()
	w.send(uint32(magicRequest), flags, command, cookie, offset, length, data)
}

func TestOptionsAreAnswered(t *testing.T) {
	conn, ended := serve(t, Export{Device: &memory{content: make([]byte, size)}, SizeBytes: size})
	w := wire{t, conn}
	w.expect([]byte("NBDMAGICIHAVEOPT"), uint16(3))
	w.send(uint32(1))
	w.send([]byte("IHAVEOPT"), uint32(5), uint32(0)) // STARTTLS
	w.expect(uint64(magicReplies), uint32(5), uint32(errorUnsupported), uint32(0))
	w.send([]byte("IHAVEOPT"), uint32(optionList), uint32(0))
	w.expect(uint64(magicReplies), uint32(optionList), uint32(replyServer), uint32(4), uint32(0))
	w.expect(uint64(magicReplies), uint32(optionList), uint32(replyAck), uint32(0))
	w.send([]byte("IHAVEOPT"), uint32(optionList), uint32(1), []byte("x"))
	w.expect(uint64(magicReplies), uint32(optionList), uint32(errorInvalid), uint32(0))
	for _, data := range [][]byte{nil, {0, 0, 0, 9, 'x', 0, 0}, {0, 0, 0, 1, 'x', 0, 2, 0, 3}, {0xff, 0xff, 0xff, 0xff, 0, 0}} {
		w.send([]byte("IHAVEOPT"), uint32(optionGo), uint32(len(data)), data)
		w.expect(uint64(magicReplies), uint32(optionGo), uint32(errorInvalid), uint32(0))
	}
	w.send([]byte("IHAVEOPT"), uint32(optionGo), uint32(9), uint32(1), []byte("x"), uint16(1), uint16(3))
	w.expect(uint64(magicReplies), uint32(optionGo), uint32(replyInfo), uint32(12), uint16(0), uint64(size), uint16(0b1101))
	w.expect(uint64(magicReplies), uint32(optionGo), uint32(replyInfo), uint32(14), uint16(3), uint32(1), uint32(4096), uint32(32<<20))
	w.expect(uint64(magicReplies), uint32(optionGo), uint32(replyAck), uint32(0))
	w.request(commandRead, 0, 7, 0, 1, nil)
	w.expect(uint32(magicReply), uint32(0), uint64(7), byte(0))
	w.request(commandDisconnect, 0, 8, 0, 0, nil)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAClientMayLeaveAtOnce(t *testing.T) {
	conn, ended := serve(t, Export{Device: &memory{}, SizeBytes: size})
	w := wire{t, conn}
	w.expect([]byte("NBDMAGICIHAVEOPT"), uint16(3))
	w.send(uint32(3), []byte("IHAVEOPT"), uint32(optionAbort), uint32(0))
	w.expect(uint64(magicReplies), uint32(optionAbort), uint32(replyAck), uint32(0))
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWhoBreaksTheProtocolIsLeft(t *testing.T) {
	for name, breaks := range map[string]func(w wire){
		"flags":          func(w wire) { w.send(uint32(0)) },
		"unknown flags":  func(w wire) { w.send(uint32(7)) },
		"no option":      func(w wire) { w.send(uint32(3), []byte("IHAVEOPX"), uint32(1), uint32(0)) },
		"a large option": func(w wire) { w.send(uint32(3), []byte("IHAVEOPT"), uint32(1), uint32(maxOption+1)) },
		"too many of them": func(w wire) {
			w.send(uint32(3))
			for range mostOptions {
				w.send([]byte("IHAVEOPT"), uint32(5), uint32(0))
				w.expect(uint64(magicReplies), uint32(5), uint32(errorUnsupported), uint32(0))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, ended := serve(t, Export{Device: &memory{}, SizeBytes: size})
			w := wire{t, conn}
			w.expect([]byte("NBDMAGICIHAVEOPT"), uint16(3))
			breaks(w)
			if err := <-ended; err == nil {
				t.Error("the server ended without an error")
			}
		})
	}
	for name, breaks := range map[string]func(w wire){
		"no request":    func(w wire) { w.send(uint32(1), make([]byte, 24)) },
		"a large write": func(w wire) { w.request(commandWrite, 0, 1, 0, maxPayload+1, nil) },
		"a large read":  func(w wire) { w.request(commandRead, 0, 1, 0, maxPayload+1, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w, ended := begun(t, Export{Device: &memory{content: make([]byte, size)}, SizeBytes: size})
			breaks(w)
			if err := <-ended; err == nil {
				t.Error("the server ended without an error")
			}
		})
	}
}

func TestRequestsAreCheckedAndAnswered(t *testing.T) {
	device := &memory{content: make([]byte, size)}
	w, _ := begun(t, Export{Device: device, SizeBytes: size})
	answered := func(what string, number uint32, cookie uint64, data []byte) {
		t.Helper()
		t.Log(what)
		w.expect(uint32(magicReply), number, cookie, data)
	}
	w.request(commandWrite, 0, 1, size-3, 3, []byte("abc"))
	answered("a write at the end", 0, 1, nil)
	w.request(commandWrite, 0, 2, size-2, 3, []byte("def"))
	answered("a write past the end", errnoNoSpace, 2, nil)
	w.request(commandWrite, 0, 3, 1<<63, 3, []byte("def"))
	answered("a write far past it", errnoNoSpace, 3, nil)
	w.request(commandRead, 0, 4, size-2, 3, nil)
	answered("a read past the end", errnoInvalid, 4, nil)
	w.request(commandRead, 0, 5, size-3, 3, nil)
	answered("a read at the end", 0, 5, []byte("abc"))
	w.request(commandRead, commandFUA, 6, 0, 1, nil)
	answered("a read with a flag", errnoInvalid, 6, nil)
	w.request(commandWrite, 2, 7, 0, 1, []byte("x"))
	answered("a write with an unknown flag", errnoInvalid, 7, nil)
	w.request(4, 0, 8, 0, 100, nil)
	answered("a TRIM, which is not offered", errnoInvalid, 8, nil)
	if device.syncs != 0 || device.content[0] != 0 {
		t.Errorf("%d flushes, first byte %d", device.syncs, device.content[0])
	}
	w.request(commandWrite, commandFUA, 9, 0, 1, []byte("x"))
	answered("a write that is to last", 0, 9, nil)
	w.request(commandFlush, 0, 10, 0, 0, nil)
	answered("a flush", 0, 10, nil)
	if device.syncs != 2 || device.content[0] != 'x' {
		t.Errorf("%d flushes, first byte %d", device.syncs, device.content[0])
	}
	device.mu.Lock()
	device.fails = syscall.ENOSPC
	device.mu.Unlock()
	w.request(commandWrite, 0, 11, 0, 1, []byte("x"))
	answered("a write on a full disk", errnoNoSpace, 11, nil)
	device.mu.Lock()
	device.fails = syscall.EIO
	device.mu.Unlock()
	w.request(commandRead, 0, 12, 0, 1, nil)
	answered("a read that fails", errnoIO, 12, nil)
}

func TestWhatIsReadOnlyIsNotWritten(t *testing.T) {
	device := &memory{content: make([]byte, size)}
	w, _ := begun(t, Export{Device: device, SizeBytes: size, ReadOnly: true})
	w.request(commandWrite, 0, 1, 0, 1, []byte("x"))
	w.expect(uint32(magicReply), uint32(errnoPermission), uint64(1))
	w.request(commandFlush, 0, 2, 0, 0, nil)
	w.expect(uint32(magicReply), uint32(0), uint64(2))
	if device.content[0] != 0 || device.syncs != 0 {
		t.Error("it was written, or flushed")
	}
}

// When Serve returns, nothing of its client is under way: another may have the device.
func TestServeEndsAfterItsRequests(t *testing.T) {
	device := &memory{content: make([]byte, size), entered: make(chan struct{}), goOn: make(chan struct{})}
	w, ended := begun(t, Export{Device: device, SizeBytes: size})
	w.request(commandWrite, 0, 1, 0, 1, []byte("x"))
	<-device.entered
	_ = w.Close()
	select {
	case err := <-ended:
		t.Fatalf("it ended amid a write: %v", err)
	default:
	}
	device.goOn <- struct{}{}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if device.content[0] != 'x' {
		t.Error("the write is lost")
	}
}

func TestAContextEndsIt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, server := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, server, Export{Device: &memory{}, SizeBytes: size}) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// file is a device that is a file.
type file struct{ *os.File }

// The client of QEMU, which is the one that matters, writes, reads and compares.
func TestQEMUReadsWhatItWrote(t *testing.T) {
	dir := t.TempDir()
	content := make([]byte, 8<<20)
	fill := rand.NewChaCha8([32]byte{1})
	_, _ = fill.Read(content)
	source, target, socket := filepath.Join(dir, "source"), filepath.Join(dir, "target"), filepath.Join(dir, "s")
	if err := errors.Join(os.WriteFile(source, content, 0o600), os.WriteFile(target, nil, 0o600), os.Truncate(target, int64(len(content)))); err != nil {
		t.Fatal(err)
	}
	disk, err := os.OpenFile(target, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Close() }()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var under sync.WaitGroup
	under.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			under.Go(func() {
				if err := Serve(t.Context(), conn, Export{Device: file{disk}, SizeBytes: int64(len(content))}); err != nil {
					t.Error(err)
				}
			})
		}
	})
	defer under.Wait()
	defer func() { _ = listener.Close() }()
	url := "nbd+unix:///disk?socket=" + socket
	qemu := func(name string, args ...string) string {
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	qemu("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, url)
	qemu("qemu-img", "compare", "-f", "raw", "-F", "raw", source, url)
	written, err := os.ReadFile(target)
	if err != nil || sha256.Sum256(written) != sha256.Sum256(content) {
		t.Errorf("the file has other content than was written: %v", err)
	}
	out := qemu("qemu-io", "-f", "raw", "-c", "write -P 7 1234567 4321", "-c", "flush", "-c", "read -P 7 1234567 4321", "-c", "aio_write -P 9 0 4M", "-c", "aio_write -P 8 4M 4M", "-c", "aio_flush", "-c", "read -P 8 5M 1M", url)
	if strings.Contains(out, "failed") || strings.Contains(out, "Pattern verification") {
		t.Error(out)
	}
}

func FuzzServe(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, said []byte) {
		client, server := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = Serve(context.Background(), server, Export{Device: &memory{content: make([]byte, size)}, SizeBytes: size})
		}()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		_, _ = client.Write(said)
		_ = client.Close()
		<-ended
	})
}
