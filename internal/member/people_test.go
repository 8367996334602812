package member_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/sshca"
)

// proxyVariable makes the test binary an SSH client's proxy to this address.
const proxyVariable = "NEARMETAL_TEST_PROXY"

func runAsProxy(address string) int {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, conn)
	return 0
}

// person is somebody outside of the cluster with OpenSSH's client, a key and a certificate for it.
type person struct {
	s      *sandbox
	dir    string
	public []byte
}

func newPerson(s *sandbox) *person {
	s.t.Helper()
	p := &person{s: s, dir: s.t.TempDir()}
	s.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(p.dir, "key"))
	var err error
	if p.public, err = os.ReadFile(filepath.Join(p.dir, "key.pub")); err != nil {
		s.t.Fatal(err)
	}
	p.write("known_hosts", s.cluster.Authority.KnownHosts())
	p.certify(s.cluster.Authority, time.Minute, time.Now())
	return p
}

func (p *person) write(name string, data []byte) {
	p.s.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), data, 0o600); err != nil {
		p.s.t.Fatal(err)
	}
}

func (p *person) certify(authority *sshca.Authority, validFor time.Duration, at time.Time) {
	p.s.t.Helper()
	cert, err := authority.CertifyUser(p.public, "ann", validFor, at)
	if err != nil {
		p.s.t.Fatal(err)
	}
	p.write("key-cert.pub", cert.Line)
}

// command is an OpenSSH client's command that goes to a member, believing it to be the one of this name. Its connection is made
// inside the member's network, as a node agent makes it.
func (p *person) command(program string, to *sandboxMember, alias string, args ...string) *exec.Cmd {
	proxy := fmt.Sprintf("env %s=%s:22 nsenter -t %s -n %s", proxyVariable, to.assignment.Address(), to.pid, os.Args[0])
	options := []string{
		"-F", "/dev/null", "-i", filepath.Join(p.dir, "key"), "-o", "CertificateFile=" + filepath.Join(p.dir, "key-cert.pub"),
		"-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "UserKnownHostsFile=" + filepath.Join(p.dir, "known_hosts"),
		"-o", "GlobalKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes",
		"-o", "HostKeyAlias=" + alias, "-o", "ProxyCommand=" + proxy,
	}
	return exec.Command(program, append(options, args...)...)
}

func TestPeopleReachMembersByAShortLivedCertificate(t *testing.T) {
	s := newSandbox(t, 2)
	s.startAll()
	p := newPerson(s)
	first := s.members[0]
	ok := func(name, want string, cmd *exec.Cmd) {
		t.Helper()
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%s: printed %q (%v), want %q", name, out, err, want)
		}
	}
	refused := func(name, want string, cmd *exec.Cmd) {
		t.Helper()
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: printed %q (%v), want a failure with %q", name, out, err, want)
		}
	}
	ok("login", "c1-0 hpc\n", p.command("ssh", first, "c1-0", "hpc@member", "echo $(hostname) $(id -un)"))
	ok("the other member", "c1-1\n", p.command("ssh", s.members[1], "c1-1", "hpc@member", "hostname"))
	ok("a terminal", "/dev/pts/0\r\n", p.command("ssh", first, "c1-0", "-tt", "-q", "hpc@member", "tty"))
	refused("root", "Permission denied", p.command("ssh", first, "c1-0", "root@member", "id"))
	refused("a member that is another", "Host key verification failed", p.command("ssh", first, "c1-1", "hpc@member", "id"))

	file := filepath.Join(p.dir, "file")
	p.write("file", bytes.Repeat([]byte("data\n"), 100_000))
	ok("scp to the member", "", p.command("scp", first, "c1-0", "-q", file, "hpc@member:/tmp/copy"))
	ok("what came", "500000\n", p.command("ssh", first, "c1-0", "hpc@member", "wc -c </tmp/copy"))
	ok("scp from the member", "", p.command("scp", first, "c1-0", "-q", "hpc@member:/tmp/copy", file+"2"))
	if back, err := os.ReadFile(file + "2"); err != nil || len(back) != 500_000 {
		t.Errorf("what came back: %d bytes (%v)", len(back), err)
	}
	sftp := p.command("sftp", first, "c1-0", "-q", "-b", "-", "hpc@member")
	sftp.Stdin = strings.NewReader("rename /tmp/copy /tmp/moved\nls /tmp/moved\n")
	if out, err := sftp.CombinedOutput(); err != nil || !strings.Contains(string(out), "/tmp/moved") {
		t.Errorf("sftp: %q (%v)", out, err)
	}

	p.certify(s.cluster.Authority, time.Minute, time.Now().Add(-time.Hour))
	refused("an expired certificate", "Permission denied", p.command("ssh", first, "c1-0", "hpc@member", "id"))
	p.certify(s.cluster.Authority, time.Minute, time.Now().Add(time.Hour))
	refused("one that is not valid yet", "Permission denied", p.command("ssh", first, "c1-0", "hpc@member", "id"))
	other, err := sshca.New(bytes.Repeat([]byte{7}, sshca.MinSecretBytes), "u2", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p.certify(other, time.Minute, time.Now())
	refused("one of another cluster", "Permission denied", p.command("ssh", first, "c1-0", "hpc@member", "id"))
	p.write("known_hosts", other.KnownHosts())
	p.certify(s.cluster.Authority, time.Minute, time.Now())
	refused("a member of another cluster", "Host key verification failed", p.command("ssh", first, "c1-0", "hpc@member", "id"))
}

func TestPeopleForwardPortsToTheMembersLoopbackOnly(t *testing.T) {
	s := newSandbox(t, 2)
	s.startAll()
	p := newPerson(s)
	// sshd's own banner stands for a service of the member: it listens everywhere.
	banner := func(target string) (string, string) {
		t.Helper()
		socket := filepath.Join(t.TempDir(), "s")
		cmd := p.command("ssh", s.members[0], "c1-0", "-L", socket+":"+target, "hpc@member", "echo up; exec cat")
		var said bytes.Buffer
		cmd.Stderr = &said
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadFull(out, make([]byte, len("up\n"))) // a failure shows in what follows
		var got []byte
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(patience))
			got = make([]byte, len("SSH-2.0-"))
			n, _ := io.ReadFull(conn, got)
			got = got[:n]
			_ = conn.Close()
		}
		_ = in.Close()
		_ = cmd.Wait()
		return string(got), said.String()
	}
	for _, c := range []struct {
		target string
		ok     bool
	}{
		{"127.0.0.1:22", true},
		{"localhost:22", true},
		{"10.64.16.3:22", false},
		{"c1-1:22", false},
	} {
		if got, said := banner(c.target); (got == "SSH-2.0-") != c.ok {
			t.Errorf("forwarding to %s: got %q, want it to work: %v; ssh said: %s", c.target, got, c.ok, said)
		}
	}
	out, err := p.command("ssh", s.members[0], "c1-0", "-o", "ExitOnForwardFailure=yes", "-R", "127.0.0.1:7777:127.0.0.1:22", "hpc@member", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "remote port forwarding failed") {
		t.Errorf("forwarding from the member: %q (%v), want it refused", out, err)
	}
}
