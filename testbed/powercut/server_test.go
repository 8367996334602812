package powercut

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/testbed/guest"
)

const (
	// ackedBeforeCut is how many answers of the API a guest is given before its power goes.
	ackedBeforeCut = 24
	serverDeadline = 3 * time.Minute
	serverState    = "/mnt/state"
	serverAddress  = "127.0.0.1:7700"
)

// firstStarts are when, after the server's process has begun, the power goes for the first time: before, while and after it makes its
// secrets, its certificates and its state. In the guest's emulation all of it takes about two seconds.
var firstStarts = []time.Duration{
	800 * time.Millisecond, 0, 200 * time.Millisecond, 400 * time.Millisecond, 1200 * time.Millisecond, 1600 * time.Millisecond, 2400 * time.Millisecond,
}

func TestAServerSurvivesPowerCutsItsFirstStartIncluded(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUESTS", "make test-guest")
	binaries := os.Getenv("NEARMETAL_BIN_DIR")
	if binaries == "" {
		t.Fatal("NEARMETAL_BIN_DIR names no folder with the program; run make test-guest")
	}
	image, err := guest.EnsureImage(t.Context(), guest.CacheDir, guest.NodePackages())
	if err != nil {
		t.Fatal(err)
	}
	rounds := 1
	if n, err := strconv.Atoi(os.Getenv("NEARMETAL_POWERCUTS")); err == nil {
		rounds = n
	}
	for round := range rounds {
		t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) {
			p := &powered{t: t, image: image, binaries: binaries, disk: newDisk(t, 512)}
			p.cutFirstStart(firstStarts[round%len(firstStarts)])
			p.cutWrites()
			p.cutWrites()
			p.check()
		})
	}
}

// powered is a machine that runs a server, and what that has acknowledged so far.
type powered struct {
	t              *testing.T
	image          guest.Image
	binaries, disk string
	acked          int
}

// boot starts the machine and its server.
func (p *powered) boot(role string) (*guest.Machine, *bufio.Scanner) {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	lines, output := io.Pipe()
	ctx, cancel := context.WithTimeout(p.t.Context(), serverDeadline)
	p.t.Cleanup(cancel)
	m, err := guest.Start(ctx, guest.Config{
		Image: p.image, CPUs: 2, MemoryMiB: 1024, Disks: []string{p.disk}, Shares: []string{filepath.Dir(self), p.binaries},
		Env: []string{
			"NEARMETAL_POWERCUT=" + role, "NEARMETAL_BIN_DIR=" + p.binaries, fmt.Sprintf("NEARMETAL_POWERCUT_ACKED=%d", p.acked),
		},
		Output:  output,
		Command: []string{"sh", "-c", `ip link set lo up; mount -t ext4 /dev/vdb /mnt && exec "$1" -test.run '^TestAServerInsideTheGuest$'`, "sh", self},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	go func() {
		_, _ = m.Wait()
		_ = output.Close()
	}()
	return m, bufio.NewScanner(lines)
}

// read takes in what a guest prints until a line begins with until, and notes what was acknowledged.
func (p *powered) read(output *bufio.Scanner, until string) (lines []string, found bool) {
	for output.Scan() {
		lines = append(lines, output.Text())
		n := 0
		if _, err := fmt.Sscanf(output.Text(), "acked %d", &n); err == nil {
			p.acked = max(p.acked, n)
		}
		if until != "" && strings.HasPrefix(output.Text(), until) {
			return lines, true
		}
	}
	return lines, false
}

// cutFirstStart takes the power away from a server that has never run before.
func (p *powered) cutFirstStart(after time.Duration) {
	p.t.Helper()
	m, output := p.boot("server")
	if lines, ok := p.read(output, "starting"); !ok {
		p.t.Fatalf("the guest ended before it started the server:\n%s", strings.Join(lines, "\n"))
	}
	cut := time.NewTimer(after)
	defer cut.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.read(output, "")
	}()
	<-cut.C
	m.Cut()
	<-done
	p.t.Logf("power cut %s after the first start of the server, with %d writes acknowledged", after, p.acked)
}

// cutWrites takes the power away in the middle of writes.
func (p *powered) cutWrites() {
	p.t.Helper()
	before := p.acked
	m, output := p.boot("server")
	lines, ok := p.read(output, fmt.Sprintf("acked %d", before+ackedBeforeCut))
	m.Cut()
	rest, _ := p.read(output, "")
	if !ok {
		p.t.Fatalf("the server did not come up again, or lost what it had acknowledged (%d writes):\n%s",
			before, strings.Join(append(lines, rest...), "\n"))
	}
	p.t.Logf("power cut after %d acknowledged writes", p.acked)
}

// check looks for all that was ever acknowledged.
func (p *powered) check() {
	p.t.Helper()
	m, output := p.boot("check")
	lines, ok := p.read(output, "whole")
	p.read(output, "") // else the guest could not print its last words
	if code, err := m.Wait(); err != nil || code != 0 || !ok {
		p.t.Fatalf("after the last power cut: exit code %d, %v\n%s", code, err, strings.Join(lines, "\n"))
	}
	p.t.Log(lines[len(lines)-1])
}

// TestAServerInsideTheGuest is what the guest runs: a server, and a user who writes down what it acknowledges.
func TestAServerInsideTheGuest(t *testing.T) {
	needs.Child(t, "NEARMETAL_POWERCUT")
	role := os.Getenv("NEARMETAL_POWERCUT")
	acked, err := strconv.Atoi(os.Getenv("NEARMETAL_POWERCUT_ACKED"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp("", "server-*.log")
	if err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("NEARMETAL_BIN_DIR"), "nearmetal"),
		"server", "--state", serverState, "--listen", serverAddress)
	server.Stdout, server.Stderr = log, log
	fmt.Println("starting")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	user, err := connect(t.Context(), ended)
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\n%s", err, text)
	}
	have := found(t, user)
	if have < acked {
		t.Fatalf("%d writes are there, %d were acknowledged", have, acked)
	}
	if role == "check" {
		fmt.Printf("whole: %d writes are there, %d were acknowledged\n", have, acked)
		return
	}
	for n := have + 1; ; n++ {
		if err := write(t.Context(), user, n); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("acked %d\n", n)
	}
}

// connect waits until the server answers to the token that it wrote, which may have been before the power went.
func connect(ctx context.Context, ended <-chan error) (*client.Client, error) {
	for {
		token, err := trust.ReadToken(filepath.Join(serverState, config.TokenName))
		if err == nil {
			user, err := client.New(client.Options{Addr: serverAddress, Bearer: token.Bearer(), TLS: trust.ClientTLS(token.Pin, "127.0.0.1")})
			if err != nil {
				return nil, err
			}
			if user.Ready(ctx) == nil {
				return user, nil
			}
		}
		retry := time.NewTimer(50 * time.Millisecond)
		select {
		case err := <-ended:
			return nil, fmt.Errorf("the server ended: %w", errors.Join(err, errors.New("its log follows")))
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-retry.C:
		}
	}
}

// write makes the n-th thing: projects and clusters in turn.
func write(ctx context.Context, user *client.Client, n int) error {
	if n%2 == 0 {
		_, err := user.CreateProject(ctx, api.ProjectRequest{Name: fmt.Sprintf("p%06d", n), Shares: 1})
		return err
	}
	_, err := user.CreateCluster(ctx, api.ClusterRequest{Name: fmt.Sprintf("c%06d", n), Queue: true})
	return err
}

// found counts what is there, and fails on a gap: writes are acknowledged in order.
func found(t *testing.T, user *client.Client) int {
	t.Helper()
	projects, err := user.Projects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	clusters, err := user.Clusters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, p := range projects {
		there[p.Name] = true
	}
	for _, c := range clusters {
		there[c.Name] = true
	}
	n := 0
	for there[fmt.Sprintf("p%06d", n+1)] || there[fmt.Sprintf("c%06d", n+1)] {
		n++
	}
	if all := len(projects) - 1 + len(clusters); all != n { // one is the project that always exists
		t.Fatalf("%d things are there, %d of them without a gap", all, n)
	}
	return n
}
