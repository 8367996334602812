package vm_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/hostcheck"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/virtioport"
)

// This test binary is also what guests run in the member agent's place: it opens the member's port and does as told.

// order is one thing a test asks a member to do.
type order struct {
	Exit *int `json:"exit,omitempty"`
	// Listen asks for a port that sends back what it is sent.
	Listen bool `json:"listen,omitempty"`
	// Converse answers what is typed on the serial console.
	Converse bool `json:"converse,omitempty"`
	// Prepare makes a node of the machine, as far as that goes without a network, and answers with what was planned, done, and left for a second run.
	Prepare bool `json:"prepare,omitempty"`
	// Read asks for a file's content, mode and owner.
	Read string `json:"read,omitempty"`
	// Fill asks for so many bytes of memory to be written.
	Fill int `json:"fill,omitempty"`
	// Panic asks the kernel to panic and to stand still then.
	Panic bool `json:"panic,omitempty"`
	// Time asks what time it is.
	Time bool `json:"time,omitempty"`
	// Shell asks for what a shell script says, run by a user and group of that number.
	Shell string `json:"shell,omitempty"`
	As    uint32 `json:"as,omitempty"`
}

// answer is what came of it.
type answer struct {
	Port   int    `json:"port,omitempty"`
	Text   string `json:"text,omitempty"`
	Mode   uint32 `json:"mode,omitempty"`
	UID    uint32 `json:"uid,omitempty"`
	BootID string `json:"boot_id,omitempty"`
	// Count is how often the program has counted; it comes without being asked for.
	Count int64 `json:"count,omitempty"`
	// Time is the guest's.
	Time time.Time `json:"time,omitzero"`
	Err  string    `json:"err,omitempty"`
}

func TestMain(m *testing.M) {
	if os.Args[0] == guestlink.ProgramInGuest {
		beMember()
	}
	if job, ok := os.LookupEnv(doomedVariable); ok {
		if err := beDoomed(job); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func beMember() {
	if _, err := os.Stat("/etc/nearmetal/stubborn"); err == nil {
		signal.Ignore(unix.SIGTERM)
	}
	var counted atomic.Int64
	go func() {
		for range time.Tick(5 * time.Millisecond) {
			counted.Add(1)
		}
	}()
	listener := virtioport.Listen(memberconfig.SerialPort)
	for {
		conn, err := listener.Accept()
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(90)
		}
		serve(conn, &counted)
		_ = conn.Close()
	}
}

// serve obeys one connection's orders until it ends, and tells the count meanwhile.
func serve(conn net.Conn, counted *atomic.Int64) {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	orders, answers := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	answering := make(chan answer)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := answers.Encode(answer{BootID: string(boot), Count: counted.Load()}); err != nil {
			return
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var next answer
			select {
			case <-tick.C:
				next.Count = counted.Load()
			case a, ok := <-answering:
				if !ok {
					return
				}
				next = a
			}
			if err := answers.Encode(next); err != nil {
				return
			}
		}
	}()
	defer close(answering)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return
		}
		select {
		case answering <- obey(o):
		case <-ended:
			return
		}
	}
}

// filled keeps what was asked to be filled.
var filled [][]byte

func obey(o order) answer {
	switch {
	case o.Exit != nil:
		os.Exit(*o.Exit)
	case o.Listen:
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return answer{Err: err.Error()}
		}
		go echo(listener)
		return answer{Port: listener.Addr().(*net.TCPAddr).Port}
	case o.Converse:
		console, err := os.OpenFile("/dev/ttyS0", os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			return answer{Err: err.Error()}
		}
		go converse(console)
	case o.Fill > 0:
		for range o.Fill / os.Getpagesize() {
			page := make([]byte, os.Getpagesize())
			page[0] = 1
			filled = append(filled, page)
		}
	case o.Panic:
		err := errors.Join(os.WriteFile("/proc/sys/kernel/panic", []byte("0"), 0), os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
		return answer{Err: fmt.Sprintf("after a panic: %v", err)}
	case o.Prepare:
		return prepare()
	case o.Shell != "":
		cmd := exec.Command("/bin/sh", "-c", o.Shell)
		cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: o.As, Gid: o.As}}
		text, err := cmd.CombinedOutput()
		if err != nil {
			return answer{Err: fmt.Sprintf("%v: %s", err, text)}
		}
		return answer{Text: string(text)}
	case o.Read != "":
		var stat unix.Stat_t
		text, err := os.ReadFile(o.Read)
		if err == nil {
			err = unix.Lstat(o.Read, &stat)
		}
		if err != nil {
			return answer{Err: err.Error()}
		}
		return answer{Text: string(text), Mode: stat.Mode & 0o7777, UID: stat.Uid}
	case o.Time:
		return answer{Time: time.Now()}
	}
	return answer{}
}

// prepare prepares the machine for virtual machines.
func prepare() answer {
	host := hostcheck.Host{Dir: "/", Run: func(ctx context.Context, program string, args ...string) (string, error) {
		said, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		return string(said), err
	}}
	_ = os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	ctx, text := context.Background(), ""
	note := func(what string, changes []hostcheck.Change) {
		for _, c := range changes {
			text += what + " " + c.String() + "\n"
		}
	}
	for range 2 {
		f := hostcheck.Look(ctx, host)
		plan := hostcheck.Plan(f, hostcheck.Wanted{For: []hostcheck.Area{hostcheck.VM}, HugePages: 8 << 20})
		plan.Changes = slices.DeleteFunc(plan.Changes, func(c hostcheck.Change) bool { return len(c.Command) > 0 && c.Command[0] == "apt-get" })
		note("planned", plan.Changes)
		if err := hostcheck.Apply(ctx, host, f, plan.Changes, func(c hostcheck.Change) { note("did", []hostcheck.Change{c}) }); err != nil {
			return answer{Err: err.Error()}
		}
		text += "--\n"
	}
	return answer{Text: text}
}

// converse answers line by line.
func converse(console *os.File) {
	for lines := bufio.NewScanner(console); lines.Scan(); {
		_, _ = console.WriteString("you typed " + lines.Text() + "\n")
	}
}

func echo(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}
