package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// memberConsole serves the console of v1-0, which says how it was asked for.
func (f *fake) memberConsole(speak func(io.Reader, io.Writer)) {
	f.fixed("GET /v1/clusters/v1", api.Cluster{Name: "v1", Status: api.ClusterStatus{
		Phase: api.ClusterStarting, Members: []api.MemberStatus{{Name: "v1-0", Phase: api.MemberStarting}},
	}})
	f.mux.HandleFunc("GET /v1/clusters/v1/members/v1-0/console", func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			f.t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: nearmetal-tunnel\r\n\r\n")
		fmt.Fprintf(conn, "asked %q\r\n", r.URL.RawQuery)
		speak(buffered, conn)
	})
}

func TestAMembersConsoleIsTypedOnWatchedAndPrinted(t *testing.T) {
	f := newFake(t)
	heard := make(chan string, 1)
	f.memberConsole(func(r io.Reader, w io.Writer) {
		typed := make([]byte, 6)
		n, _ := io.ReadFull(r, typed)
		heard <- string(typed[:n])
	})
	s := f.shell()
	s.in = strings.NewReader("ls -l\x1d") // of a file no byte is an escape
	has(t, s.run(t, "cluster", "console", "v1", "--force"), 0, "connected to the console of v1-0; Ctrl-] ends it", `asked "force=true&write=true"`)
	if got := <-heard; got != "ls -l\x1d" {
		t.Errorf("the console heard %q", got)
	}
	f = newFake(t)
	f.memberConsole(func(io.Reader, io.Writer) {})
	has(t, f.shell().run(t, "cluster", "console", "v1", "v1-0", "--watch"), 0, "Ctrl-C ends it", `asked ""`)
	got := f.shell().run(t, "cluster", "console", "v1", "--show-log")
	has(t, got, 0, `asked "kept_only=true"`)
	has(t, f.shell().run(t, "cluster", "console", "v1", "v1-9"), cli.ExitNotFound, `no member "v1-9"`)
	has(t, f.shell().run(t, "cluster", "console", "v1", "--watch", "--force"), cli.ExitUsage)
	has(t, f.shell().run(t, "cluster", "console"), cli.ExitUsage, "name the cluster")
	f = newFake(t)
	f.fixed("GET /v1/clusters/v1", api.Cluster{Name: "v1", Status: api.ClusterStatus{Members: []api.MemberStatus{{Name: "v1-0"}}}})
	f.fixed("GET /v1/clusters/v1/members/v1-0/console", &api.Problem{Status: http.StatusConflict, Code: "console_in_use", Detail: "ann types on this console"})
	has(t, f.shell().run(t, "cluster", "console", "v1"), cli.ExitConflict, "ann types on this console; watch it with --watch, or disconnect the other user with --force")
}

func TestCtrlCEndsAWatchedConsoleWithoutAnError(t *testing.T) {
	f := newFake(t)
	f.memberConsole(func(r io.Reader, _ io.Writer) { _, _ = io.Copy(io.Discard, r) })
	s := f.shell()
	s.interrupts = make(chan os.Signal, 1)
	connected := make(chan struct{})
	var once sync.Once
	s.told = func(said string) {
		if strings.Contains(said, "Ctrl-C ends it") {
			once.Do(func() { close(connected) })
		}
	}
	got := s.during(t, func() {
		<-connected
		s.interrupts <- os.Interrupt
	}, "cluster", "console", "v1", "--watch")
	has(t, got, cli.ExitInterrupted)
	if strings.Contains(got.err, "Error:") {
		t.Errorf("Ctrl-C, the announced end, is reported as an error: %s", got.err)
	}
}

func TestADisplayIsPassedToViewersOnThisMachine(t *testing.T) {
	f := newFake(t)
	f.fixed("GET /v1/clusters/v1", api.Cluster{Name: "v1", Status: api.ClusterStatus{Phase: api.ClusterReady, Members: []api.MemberStatus{{Name: "v1-0", Phase: api.MemberReady}}}})
	f.mux.HandleFunc("GET /v1/clusters/v1/members/v1-0/display", func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			f.t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: nearmetal-tunnel\r\n\r\nRFB 003.008\n")
		_, _ = io.Copy(conn, buffered)
	})
	path := filepath.Join(t.TempDir(), "vnc")
	for _, at := range []string{"", "unix:" + path} {
		s := f.shell()
		s.interrupts = make(chan os.Signal, 1)
		listening := make(chan string, 1)
		s.told = func(said string) {
			if _, rest, ok := strings.Cut(said, "the screen of v1-0 is at "); ok && strings.Contains(rest, "Ctrl-C ends it") {
				address, _, _ := strings.Cut(rest, ": open")
				select {
				case listening <- address:
				default:
				}
			}
		}
		args := []string{"cluster", "console", "v1", "--vnc"}
		if at != "" {
			args = append(args, "--listen", at)
		}
		ended := make(chan result, 1)
		go func() { ended <- s.run(t, args...) }()
		address := <-listening
		network := "tcp"
		if at != "" {
			network = "unix"
			if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
				t.Errorf("others may connect to the screen: %v, %v", info, err)
			}
		} else if !strings.HasPrefix(address, "127.0.0.1:") {
			t.Errorf("it listens at %s", address)
		}
		viewer, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(viewer, "hello"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len("RFB 003.008\nhello"))
		if _, err := io.ReadFull(viewer, got); err != nil || string(got) != "RFB 003.008\nhello" {
			t.Errorf("the viewer reads %q, %v", got, err)
		}
		s.interrupts <- os.Interrupt
		end := <-ended
		has(t, end, cli.ExitInterrupted)
		if strings.Contains(end.err, "Error:") {
			t.Errorf("Ctrl-C, the announced end, is reported as an error: %s", end.err)
		}
		_ = viewer.Close()
	}
	f = newFake(t)
	f.fixed("GET /v1/clusters/v1", api.Cluster{Name: "v1", Status: api.ClusterStatus{Members: []api.MemberStatus{{Name: "v1-0"}}}})
	f.fixed("GET /v1/clusters/v1/members/v1-0/display", &api.Problem{Status: http.StatusConflict, Code: "no_display", Detail: "member \"v1-0\" has no display"})
	has(t, f.shell().run(t, "cluster", "console", "v1", "--vnc"), cli.ExitConflict, "has no display")
	has(t, f.shell().run(t, "cluster", "console", "v1", "--vnc", "--watch"), cli.ExitUsage, "--vnc conflicts")
	has(t, f.shell().run(t, "cluster", "console", "v1", "--listen", "127.0.0.1:1"), cli.ExitUsage, "--listen is for --vnc")
}

func TestCtrlBracketLeavesAMembersConsole(t *testing.T) {
	f := newFake(t)
	heard := make(chan string, 1)
	f.memberConsole(func(r io.Reader, _ io.Writer) {
		all, _ := io.ReadAll(r)
		heard <- string(all)
	})
	main, terminal := openTerminal(t)
	s := f.shell()
	s.in = terminal
	go func() {
		for { // once it is raw: a terminal that is not turns \r to \n
			mode, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
			if err != nil || mode.Lflag&unix.ICANON == 0 {
				break
			}
		}
		_, _ = main.WriteString("~.ls\r\x1dnever")
	}()
	has(t, s.run(t, "cluster", "console", "v1"), 0, "left the console of v1-0")
	if got := <-heard; got != "~.ls\r" {
		t.Errorf("the console heard %q, want what was typed before Ctrl-]", got)
	}
}

// openTerminal returns both ends of a pseudo terminal (pts(4)).
func openTerminal(t *testing.T) (main, terminal *os.File) {
	t.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = main.Close() })
	number, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	var screen bytes.Buffer
	go func() { _, _ = io.Copy(&screen, main) }()
	return main, terminal
}
