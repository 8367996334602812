package container_test

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/sandbox"
)

// This test binary is also the first process of the members it starts: it connects to the control socket and does as told.

// order is one thing a test asks a member to do.
type order struct {
	Exit *int     `json:"exit,omitempty"`
	Run  []string `json:"run,omitempty"`
	// Probe is the name of an entry of probes.
	Probe    string `json:"probe,omitempty"`
	Argument string `json:"argument,omitempty"`
}

// answer is what came of it.
type answer struct {
	Output string `json:"output"`
	Err    string `json:"err,omitempty"`
}

func TestMain(m *testing.M) {
	if os.Args[0] == sandbox.Name {
		_ = sandbox.Hold()
		os.Exit(1)
	}
	if os.Args[0] == container.MemberPath {
		beMember(len(os.Args) > 1 && os.Args[1] == "stubborn")
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

func beMember(stubborn bool) {
	if _, err := os.Stat("/etc/nearmetal/stubborn"); err == nil || stubborn {
		signal.Ignore(unix.SIGTERM)
	} else {
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, unix.SIGTERM)
		go func() {
			<-terminated
			os.Exit(0)
		}()
	}
	if _, err := os.Stat("/etc/nearmetal/counting"); err == nil {
		go count()
	}
	conn, err := net.Dial("unix", "/run/nearmetal/agent.sock")
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(90)
	}
	orders, answers := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	_ = answers.Encode(answer{Output: "ready"})
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			select {} // the test has gone; stay until stopped
		}
		_ = answers.Encode(obey(o))
	}
}

// count writes a byte every millisecond of the time it is given.
func count() {
	name, err := os.Hostname()
	if err != nil {
		return
	}
	file, err := os.OpenFile("/home/progress-"+name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return
	}
	for range time.Tick(time.Millisecond) {
		if _, err := file.WriteString("."); err != nil {
			return
		}
	}
}

func obey(o order) answer {
	switch {
	case o.Exit != nil:
		os.Exit(*o.Exit)
	case len(o.Run) > 0:
		output, err := exec.Command(o.Run[0], o.Run[1:]...).CombinedOutput()
		return answerOf(string(output), err)
	case o.Probe != "":
		output, err := probes[o.Probe](o.Argument)
		return answerOf(output, err)
	}
	return answer{}
}

func answerOf(output string, err error) answer {
	a := answer{Output: output}
	if err != nil {
		a.Err = err.Error()
	}
	return a
}
