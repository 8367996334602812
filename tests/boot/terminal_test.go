package boot

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a program on a pseudo-terminal, as a person uses it.
type terminal struct {
	t      *testing.T
	master *os.File
	done   chan error
	// patience is how long something that is expected may take.
	patience time.Duration

	mu      sync.Mutex
	text    string // what was printed and not expected yet
	changed chan struct{}
}

func openTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { _ = master.Close() })
	raw, err := master.SyscallConn()
	must(t, err)
	number := 0
	must(t, raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}))
	must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, cmd.Start())
	term := &terminal{t: t, master: master, done: make(chan error, 1), patience: 2 * time.Minute, changed: make(chan struct{}, 1)}
	go func() { term.done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	go term.listen()
	return term
}

func (t *terminal) listen() {
	buf := make([]byte, 4096)
	for {
		n, err := t.master.Read(buf)
		t.mu.Lock()
		t.text += string(buf[:n])
		t.mu.Unlock()
		select {
		case t.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return // EIO once the program has ended
		}
	}
}

// say types.
func (t *terminal) say(text string) {
	t.t.Helper()
	_, err := t.master.WriteString(text)
	must(t.t, err)
}

// expect waits until this is printed, forgets what was printed up to it, and returns that.
func (t *terminal) expect(what string) (before string) {
	t.t.Helper()
	deadline := time.After(t.patience)
	for {
		t.mu.Lock()
		before, after, ok := strings.Cut(t.text, what)
		if ok {
			t.text = after
		}
		seen := t.text
		t.mu.Unlock()
		if ok {
			return before
		}
		select {
		case <-t.changed:
		case <-deadline:
			t.t.Fatalf("waited %s for %q on the terminal; it showed %q", t.patience, what, seen)
		}
	}
}

// answer types a command to a shell, and returns what is printed until it has ended.
func (t *terminal) answer(command string) string {
	t.t.Helper()
	t.say(command + "; echo end-$((40+2))\r")
	return t.expect("end-42")
}

// ended waits for the end of the program, which must have ended well.
func (t *terminal) ended() {
	t.t.Helper()
	select {
	case err := <-t.done:
		if err != nil {
			t.t.Errorf("the program on the terminal ended: %v", err)
		}
	case <-time.After(time.Minute):
		t.t.Error("the program on the terminal does not end")
	}
}
