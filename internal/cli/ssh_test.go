package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// asProgram makes this test's binary the program: ssh runs it as ProxyCommand.
const asProgram = "NEARMETAL_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	os.Exit(cli.Run(context.Background(), cli.Invocation{
		Args: os.Args[1:], Streams: config.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, Getenv: os.Getenv, Interrupts: interrupts,
	}))
}

// sshSite is a fake site whose cluster c1 has a real SSH server behind the member c1-0.
type sshSite struct {
	*fake
	// tmp is where temporary files go.
	tmp string
	// trusted is the authority that certificates tell to trust, authority the one that signs.
	trusted, authority ssh.Signer
}

func newSigner(t *testing.T) (ssh.Signer, ed25519.PrivateKey) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer, key
}

func line(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

// certified signs a key for a principal.
func certified(t *testing.T, authority ssh.Signer, key ssh.PublicKey, kind uint32, principal string) string {
	t.Helper()
	cert := &ssh.Certificate{
		Key: key, CertType: kind, KeyId: "test", ValidPrincipals: []string{principal}, ValidBefore: ssh.CertTimeInfinity,
		Permissions: ssh.Permissions{Extensions: map[string]string{"permit-pty": "", "permit-port-forwarding": ""}},
	}
	if err := cert.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	return line(cert)
}

func newSSHSite(t *testing.T) *sshSite {
	t.Helper()
	for _, program := range []string{"ssh", "scp", "/usr/sbin/sshd"} {
		needs.Program(t, program)
	}
	s := &sshSite{fake: newFake(t), tmp: filepath.Join(t.TempDir(), "a b%c'd")}
	if err := os.Mkdir(s.tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", s.tmp)
	t.Setenv(asProgram, "1")
	s.authority, _ = newSigner(t)
	s.trusted = s.authority
	serve := s.sshd()
	s.fixed("GET /v1/clusters/c1", ready("c1", 2))
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s.on("POST /v1/clusters/c1/certificate", func(_ *http.Request, body string) any {
		var req api.CertificateRequest
		if err := json.Unmarshal([]byte(body), &req); err != nil {
			t.Error(err)
		}
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(req.PublicKey))
		if err != nil {
			t.Error(err)
		}
		return api.Certificate{
			Certificate: certified(t, s.authority, key, ssh.UserCert, "people"), ValidUntil: time.Now().Add(time.Minute),
			KnownHosts: "@cert-authority * " + line(s.trusted.PublicKey()), User: me.Username,
		}
	})
	s.mux.HandleFunc("GET /v1/clusters/c1/members/c1-0/connect", func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: nearmetal-tunnel\r\n\r\n")
		serve(conn)
	})
	s.mux.HandleFunc("GET /v1/clusters/c1/members/c1-1/connect", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, http.StatusConflict, "member_unreachable", `the agent of node "n2" is not connected`)
	})
	return s
}

// sshd writes the configuration of an SSH server and returns what serves one connection with it.
func (s *sshSite) sshd() func(net.Conn) {
	t := s.t
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	host, key := newSigner(t)
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	config := write("config", "HostKey "+write("host", string(pem.EncodeToMemory(block)))+
		"\nHostCertificate "+write("host-cert.pub", certified(t, s.authority, host.PublicKey(), ssh.HostCert, "c1-0")+"\n")+
		"\nTrustedUserCAKeys "+write("ca", line(s.authority.PublicKey())+"\n")+
		"\nAuthorizedPrincipalsFile "+write("principals", "people\n")+
		"\nPubkeyAuthentication yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\n"+
		"PermitRootLogin yes\nLogLevel ERROR\nSubsystem sftp internal-sftp\n")
	return func(conn net.Conn) {
		defer conn.Close()
		file, err := conn.(*net.UnixConn).File()
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		// As root it wants a directory that only a running service makes: it gets one nobody else sees.
		script := `exec /usr/sbin/sshd -i -e -f "$0"`
		if os.Geteuid() == 0 {
			script = "mount -t tmpfs none /run && mkdir /run/sshd && " + script
		}
		cmd := exec.Command("sh", "-c", script, config)
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		}
		var said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = file, file, &said
		if err := cmd.Run(); err != nil && t.Context().Err() == nil {
			t.Logf("sshd: %v: %s", err, said.String())
		}
	}
}

// leavesNothing fails when temporary files are left.
func (s *sshSite) leavesNothing() {
	s.t.Helper()
	left, err := os.ReadDir(s.tmp)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, entry := range left {
		s.t.Errorf("%s is left behind", entry.Name())
	}
}

func TestSSHRunsACommandAsItStandsAndEndsAsItDoes(t *testing.T) {
	s := newSSHSite(t)
	sh := s.shell()
	sh.in = strings.NewReader("given\n")
	r := sh.run(t, "cluster", "ssh", "c1", "--", "sh", "-c", `printf '<%s>' "$@"; cat; echo complaint >&2; exit 7`, "-", "a  b", "$HOME", "*")
	if r.code != 7 || r.out != "<a  b><$HOME><*>given\n" || r.err != "complaint\n" {
		t.Errorf("exit code %d, output %q, error %q", r.code, r.out, r.err)
	}
	r = s.shell().run(t, "cluster", "ssh", "c1", "c1-0", "--", `stat -c '%a %n' "$TMPDIR"; exit 0`)
	if r.code != 0 {
		t.Errorf("a command for the shell: exit code %d: %s", r.code, r.err)
	}
	s.leavesNothing()
}

func TestTheKeyIsReadableByItsOwnerOnlyWhileItIsThere(t *testing.T) {
	s := newSSHSite(t)
	r := s.shell().run(t, "cluster", "ssh", "c1", "--", "find", s.tmp, "-mindepth", "1", "-printf", `%m %f\n`)
	modes := map[string]string{}
	for _, l := range strings.Split(strings.TrimSpace(r.out), "\n") {
		mode, name, _ := strings.Cut(l, " ")
		modes[strings.TrimRight(name, "0123456789")] = mode
	}
	if len(modes) != 4 || modes["nearmetal-ssh-"] != "700" || modes["key"] != "600" {
		t.Errorf("files: %q\n%s", r.out, r.err)
	}
	s.leavesNothing()
}

func TestAServerThatIsNotTheMemberIsNotTalkedTo(t *testing.T) {
	s := newSSHSite(t)
	s.trusted, _ = newSigner(t)
	r := s.shell().run(t, "cluster", "ssh", "c1", "--", "echo", "talked")
	has(t, r, 255, "Host key verification failed")
	if r.out != "" {
		t.Errorf("it said %q", r.out)
	}
	s.leavesNothing()
}

func TestAMemberThatCanNotBeReachedIsSaidByTheTunnel(t *testing.T) {
	s := newSSHSite(t)
	has(t, s.shell().run(t, "cluster", "ssh", "c1", "c1-1", "--", "true"), 255, `Error: the agent of node "n2" is not connected`)
	s.leavesNothing()
}

func TestASignalEndsSSHAndLeavesNoKeyBehind(t *testing.T) {
	s := newSSHSite(t)
	sh := s.shell()
	interrupts := make(chan os.Signal, 1)
	sh.interrupts = interrupts
	sh.told = func(text string) {
		if strings.Contains(text, "started") {
			select {
			case interrupts <- syscall.SIGTERM:
			default:
			}
		}
	}
	has(t, sh.run(t, "cluster", "ssh", "c1", "--", "echo started >&2; exec sleep 25"), 128+int(syscall.SIGTERM))
	s.leavesNothing()
}

func TestFilesAreCopiedBothWays(t *testing.T) {
	s := newSSHSite(t)
	there, here := t.TempDir(), t.TempDir()
	t.Chdir(here)
	for _, name := range []string{"a:b", ".c:d", "-dash", "with blank"} {
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	has(t, s.shell().run(t, "cp", "--", "./a:b", ".c:d", "-dash", "with blank", "c1:"+there+"/"), 0)
	has(t, s.shell().run(t, "cp", "-r", "c1/c1-0:"+there, here+"/back"), 0)
	for _, name := range []string{"a:b", ".c:d", "-dash", "with blank"} {
		if text, err := os.ReadFile(filepath.Join(here, "back", name)); err != nil || string(text) != name {
			t.Errorf("%s came back as %q, %v", name, text, err)
		}
	}
	has(t, s.shell().run(t, "cp", "c1:"+there+"/none", "."), 1, "No such file")
	s.leavesNothing()
}

func TestForwardLeadsToAPortOfTheMemberUntilCtrlC(t *testing.T) {
	s := newSSHSite(t)
	remote, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	go func() {
		for {
			conn, err := remote.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(conn, "hello from the member")
			conn.Close()
		}
	}()
	local := unusedPort(t)
	port := remote.Addr().(*net.TCPAddr).Port
	open := make(chan struct{})
	sh := s.shell()
	interrupts := make(chan os.Signal, 1)
	sh.interrupts = interrupts
	isOpen := false
	sh.told = func(text string) {
		if !isOpen && strings.Contains(text, fmt.Sprintf("127.0.0.1:%d leads to c1-0:%d", local, port)) {
			isOpen = true
			close(open)
		}
	}
	r := sh.during(t, func() {
		select {
		case <-open:
		case <-t.Context().Done():
		case <-time.After(20 * time.Second):
		}
		defer func() { interrupts <- syscall.SIGINT }()
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", local))
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if text, err := bufio.NewReader(conn).ReadString('\n'); text != "hello from the member\n" {
			t.Errorf("read %q, %v", text, err)
		}
	}, "cluster", "forward", "c1", fmt.Sprintf("%d:%d", local, port))
	has(t, r, cli.ExitInterrupted)
	if strings.Contains(r.err, "Error:") {
		t.Errorf("Ctrl-C is an error: %s", r.err)
	}
	s.leavesNothing()
}

// unusedPort is one that nobody listens on, and nobody will who asks for any: it is none of those that the kernel gives out.
func unusedPort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 20000 + mathrand.IntN(12000)
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = listener.Close()
			return port
		}
	}
	t.Fatal("no port from 20000 to 31999 is free")
	return 0
}

func TestForwardEndsWhenAPortOfThisMachineIsTaken(t *testing.T) {
	s := newSSHSite(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	has(t, s.shell().run(t, "cluster", "forward", "c1", fmt.Sprintf("%d:80", taken.Addr().(*net.TCPAddr).Port)), 255, "Address already in use")
	s.leavesNothing()
}

func TestAMissingSSHIsSaidWithWhatToInstall(t *testing.T) {
	f := newFake(t)
	t.Setenv("PATH", t.TempDir())
	for args, program := range map[string]string{"cluster ssh c1": "ssh", "cp c1:a .": "scp", "cluster forward c1 80": "ssh"} {
		has(t, f.shell().run(t, strings.Fields(args)...), cli.ExitFailed, fmt.Sprintf("the program %q is needed", program), "openssh-client")
	}
	f.expect()
}

func TestMembersThatNobodyCanLogInToAreRefusedWithWhatToDo(t *testing.T) {
	tests := []struct {
		name   string
		member string
		state  api.Cluster
		code   int
		say    string
	}{
		{"no such member", "c1-9", ready("c1", 2), cli.ExitNotFound, `no member "c1-9"`},
		{"mistyped", "c1_0", ready("c1", 2), cli.ExitNotFound, `did you mean "c1-0"?`},
		{"paused", "", cluster("c1", 1, api.ClusterPaused, member("c1", 0, api.MemberPaused)), cli.ExitConflict, "cluster resume c1"},
		{"saved", "", cluster("c1", 1, api.ClusterSaved, member("c1", 0, api.MemberSaved)), cli.ExitConflict, "cluster restore c1"},
		{"lost", "c1-0", cluster("c1", 1, api.ClusterDegraded, member("c1", 0, api.MemberLost)), cli.ExitConflict, `member "c1-0" of cluster "c1" is lost`},
		{"queued", "", cluster("c1", 1, api.ClusterQueued), cli.ExitConflict, "is queued and has no member"},
		{
			"only the old one of its name is left", "c1-0", cluster("c1", 1, api.ClusterDegraded, member("c1", 0, api.MemberReleasing)),
			cli.ExitConflict, "has no member to reach",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			f.fixed("GET /v1/clusters/c1", tt.state)
			args := []string{"cluster", "ssh", "c1"}
			if tt.member != "" {
				args = append(args, tt.member)
			}
			has(t, f.shell().run(t, args...), tt.code, tt.say)
			f.expect("GET /v1/clusters/c1")
		})
	}
}
