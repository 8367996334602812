package vm_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
)

// readUntil reads a console until it has shown a text, and returns all it showed.
func readUntil(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var seen bytes.Buffer
	one := make([]byte, 1)
	for !bytes.HasSuffix(seen.Bytes(), []byte(text)) {
		if _, err := io.ReadFull(r, one); err != nil {
			t.Fatalf("the console shows %q, then %v; want %q", seen.String(), err, text)
		}
		seen.Write(one)
	}
	return seen.String()
}

func TestAConsoleShowsTheMachineAndTypesThereAlsoForTheNextAgent(t *testing.T) {
	images := needGuests(t)
	images.image.Kernel.Arguments = "console=ttyS0"
	r := newRig(t, images)
	m := r.member(t)
	id := m.Assignment.ID
	attach := func(how api.ConsoleRequest) io.ReadWriteCloser {
		t.Helper()
		console, err := r.Console(t.Context(), id, how)
		if err != nil {
			t.Fatal(err)
		}
		return console
	}
	if _, err := r.Console(t.Context(), id, api.ConsoleRequest{}); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("the console of a member that was not started: %v", err)
	}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	writer := attach(api.ConsoleRequest{Write: true, By: "ann"})
	var busy *serialconsole.BusyError
	if _, err := r.Console(t.Context(), id, api.ConsoleRequest{Write: true}); !errors.As(err, &busy) || busy.By != "ann" {
		t.Errorf("a second one who types: %v", err)
	}
	r.tell(t, id, order{Converse: true})
	watcher := attach(api.ConsoleRequest{})
	if _, err := io.WriteString(writer, "hello\r"); err != nil {
		t.Fatal(err)
	}
	readUntil(t, watcher, "you typed hello\r\n")
	kept, err := io.ReadAll(attach(api.ConsoleRequest{KeptOnly: true}))
	if err != nil || !strings.Contains(string(kept), "Linux version ") || !strings.Contains(string(kept), "you typed hello") {
		t.Errorf("%v; what is kept does not begin with the boot of the kernel, or lacks what was typed:\n%s", err, kept)
	}
	if _, err := r.Display(t.Context(), id); err == nil {
		t.Error("a machine without a display has one")
	}
	// The next agent goes on where this one ended.
	r.reopen(t)
	if _, err := io.ReadAll(watcher); err != nil {
		t.Errorf("the console of an agent that has ended: %v", err)
	}
	if _, err := r.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	writer = attach(api.ConsoleRequest{Write: true})
	readUntil(t, writer, "you typed hello\r\n")
	for { // it may not be connected yet
		if _, err := io.WriteString(writer, "again\r"); err == nil {
			break
		}
	}
	readUntil(t, writer, "you typed again\r\n")
	if err := r.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(writer); err != nil {
		t.Errorf("the console of a machine that is off: %v", err)
	}
	if _, err := r.Console(t.Context(), id, api.ConsoleRequest{}); err == nil {
		t.Error("the console of a machine that is off can be attached to")
	}
	if text, err := io.ReadAll(attach(api.ConsoleRequest{KeptOnly: true})); err != nil || !strings.Contains(string(text), "you typed again") {
		t.Errorf("what a machine that is off had printed: %q, %v", text, err)
	}
}

func TestTheConsoleOfAMachineThatGoesOnIsReadFromTheFirstMoment(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.Save(t.Context(), m.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	next := r.successor(t, m)
	id := next.Assignment.ID
	if err := r.Restore(t.Context(), next, m.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	r.tell(t, id, order{Shell: "echo nobody asked yet >/dev/ttyS0"})
	watcher, err := r.Console(t.Context(), id, api.ConsoleRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// Several times, as a reader that begins only now may not be connected yet.
	r.tell(t, id, order{Shell: "for i in 1 2 3 4 5 6 7 8 9; do echo somebody asks >/dev/ttyS0; sleep 1; done"})
	if seen := readUntil(t, watcher, "somebody asks"); !strings.Contains(seen, "nobody asked yet") {
		t.Errorf("what was printed before somebody asked is lost: %q", seen)
	}
}
