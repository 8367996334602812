package serialconsole

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// machine is the other end of a console; each connection arrives at it.
type machine struct {
	console *Console
	conns   chan net.Conn
	file    string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{conns: make(chan net.Conn), file: filepath.Join(t.TempDir(), "console.log")}
	m.console = Open(Config{File: m.file, Dial: func(ctx context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		select {
		case m.conns <- there:
			return here, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	t.Cleanup(m.console.Close)
	return m
}

// prints prints a text that is not kept yet, and returns when it is.
func (m *machine) prints(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	w := m.attach(t, api.ConsoleRequest{})
	defer func() { _ = w.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	wantNext(t, w, text)
}

func (m *machine) attach(t *testing.T, r api.ConsoleRequest) *Watcher {
	t.Helper()
	w, err := m.console.Attach(r)
	if err != nil {
		t.Fatalf("attach %+v: %v", r, err)
	}
	return w
}

// wantNext reads until a text has come.
func wantNext(t *testing.T, r io.Reader, text string) {
	t.Helper()
	var seen bytes.Buffer
	one := make([]byte, 1)
	for !bytes.HasSuffix(seen.Bytes(), []byte(text)) {
		if _, err := io.ReadFull(r, one); err != nil {
			t.Fatalf("the console shows %q, then %v; want %q", seen.String(), err, text)
		}
		seen.Write(one)
	}
}

func TestAConsoleBeginsWithWhatWasPrintedAndGoesOn(t *testing.T) {
	m := newMachine(t)
	port := <-m.conns
	m.prints(t, port, "booting\r\n")
	one, two := m.attach(t, api.ConsoleRequest{}), m.attach(t, api.ConsoleRequest{Write: true})
	if _, err := io.WriteString(port, "login: "); err != nil {
		t.Fatal(err)
	}
	wantNext(t, one, "booting\r\nlogin: ")
	wantNext(t, two, "booting\r\nlogin: ")
	if got, want := string(m.console.Kept()), "booting\r\nlogin: "; got != want {
		t.Errorf("kept %q, want %q", got, want)
	}
	go func() { _, _ = io.WriteString(two, "root\r") }()
	wantNext(t, port, "root\r")
	go func() { _, _ = io.Copy(io.Discard, port) }()
	if _, err := io.WriteString(one, "x"); err == nil {
		t.Error("a watcher types")
	}
	all, err := io.ReadAll(m.attach(t, api.ConsoleRequest{KeptOnly: true}))
	if err != nil || string(all) != "booting\r\nlogin: " {
		t.Errorf("what is kept reads %q, %v", all, err)
	}
}

func TestOneTypesAtATime(t *testing.T) {
	m := newMachine(t)
	port := <-m.conns
	first := m.attach(t, api.ConsoleRequest{Write: true, By: "ann"})
	_, err := m.console.Attach(api.ConsoleRequest{Write: true, By: "bob"})
	var busy *BusyError
	if !errors.As(err, &busy) || busy.By != "ann" {
		t.Fatalf("a second one who types: %v", err)
	}
	second := m.attach(t, api.ConsoleRequest{Write: true, Force: true, By: "bob"})
	if text, err := io.ReadAll(first); err != nil || !strings.Contains(string(text), "bob took this console over") {
		t.Errorf("whom it was taken from reads %q, %v", text, err)
	}
	if _, err := io.WriteString(first, "x"); err == nil {
		t.Error("whom it was taken from still types")
	}
	go func() { _, _ = io.WriteString(second, "y") }()
	wantNext(t, port, "y")
	// Who leaves the keyboard leaves it to others, and goes on watching.
	if err := second.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	third := m.attach(t, api.ConsoleRequest{Write: true})
	if _, err := io.WriteString(port, "hello"); err != nil {
		t.Fatal(err)
	}
	wantNext(t, second, "hello")
	_ = third.Close()
	m.attach(t, api.ConsoleRequest{Write: true})
}

func TestAWatcherThatDoesNotReadHoldsUpNobody(t *testing.T) {
	m := newMachine(t)
	port := <-m.conns
	slow := m.attach(t, api.ConsoleRequest{})
	line := strings.Repeat("0123456789abcde\n", 4096)
	for range 8 { // twice what may wait
		m.prints(t, port, line)
	}
	m.prints(t, port, "the end")
	if kept := m.console.Kept(); len(kept) > KeptBytes || len(kept) < KeptBytes/2 || !bytes.HasSuffix(kept, []byte("the end")) {
		t.Errorf("%d bytes are kept, want at most %d, and the end of all", len(kept), KeptBytes)
	}
	if text, err := io.ReadAll(m.attach(t, api.ConsoleRequest{KeptOnly: true})); err != nil || !bytes.Equal(text, m.console.Kept()) {
		t.Errorf("what is kept reads %d bytes, %v; want all %d", len(text), err, len(m.console.Kept()))
	}
	late := m.attach(t, api.ConsoleRequest{})
	_ = port.Close()
	m.console.Close()
	if text, err := io.ReadAll(slow); err != nil || !bytes.Contains(text, []byte(" bytes were skipped]\r\n")) || !bytes.HasSuffix(text, []byte("the end")) {
		t.Errorf("a slow watcher reads %d bytes, %v; want that it is told what it missed, and the end", len(text), err)
	}
	if text, err := io.ReadAll(late); err != nil || len(text) != ShownBytes {
		t.Errorf("who comes late is shown %d bytes, %v; want the last %d", len(text), err, ShownBytes)
	}
}

func TestAConsoleOutlivesItsConnectionAndItsReader(t *testing.T) {
	m := newMachine(t)
	port := <-m.conns
	m.prints(t, port, "one ")
	w := m.attach(t, api.ConsoleRequest{Write: true})
	_ = port.Close()
	port = <-m.conns
	if _, err := io.WriteString(port, "two"); err != nil {
		t.Fatal(err)
	}
	wantNext(t, w, "one two")
	m.console.Close()
	if text, err := io.ReadAll(w); err != nil || len(text) != 0 {
		t.Errorf("a watcher of a console that was closed reads %q, %v; want its end", text, err)
	}
	if _, err := m.console.Attach(api.ConsoleRequest{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("attaching to a console that was closed: %v", err)
	}
	if got := string(Kept(m.file)); got != "one two" {
		t.Errorf("kept %q without a reader", got)
	}
}

func TestWhatAMachinePrintedBeforeItsLastStartIsToldApart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "console.log")
	start := func() {
		t.Helper()
		if err := Restarts(file); err != nil {
			t.Fatal(err)
		}
	}
	start()
	if got := Kept(file); len(got) != 0 {
		t.Errorf("the first start notes %q", got)
	}
	log{file}.append([]byte("first boot"))
	if got := string(SinceStart(file)); got != "first boot" {
		t.Errorf("the first boot printed %q", got)
	}
	start()
	if got := string(SinceStart(file)); got != "" {
		t.Errorf("the second boot printed %q before it began", got)
	}
	log{file}.append([]byte("second boot"))
	if got := string(SinceStart(file)); got != "second boot" {
		t.Errorf("the second boot printed %q", got)
	}
	if got, want := string(Kept(file)), "first boot\r\n[nearmetal: the machine starts again]\r\nsecond boot"; got != want {
		t.Errorf("kept %q, want %q", got, want)
	}
	start()
	log{file}.append(bytes.Repeat([]byte("x"), 3*KeptBytes)) // more than is kept: the note is gone, and all that is kept is of the third boot
	if got := SinceStart(file); len(got) != len(Kept(file)) {
		t.Errorf("the third boot printed %d bytes of the %d that are kept", len(got), len(Kept(file)))
	}
}
