package cli

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// access is what the system's ssh and scp need to reach one member: a key of its own, a short-lived certificate on it, and whom
// to trust. They lie in a directory that only its owner can read, and go with close.
type access struct {
	dir string
	// member is the one reached, options are for the programs, env is for their environment.
	member  string
	options []string
	env     []string
}

// access asks for a certificate for a member ("": the one of rank 0) of a cluster.
func (a *app) access(ctx context.Context, cluster, member string) (*access, error) {
	c, err := a.client(0)
	if err != nil {
		return nil, err
	}
	cl, err := c.Cluster(ctx, cluster)
	if err != nil {
		return nil, err
	}
	m, err := reachable(cl, member)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nearmetal-ssh-") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("no place for the key: %w", err)
	}
	acc := &access{dir: dir, member: m.Name}
	if err := acc.fill(ctx, a, c, cluster); err != nil {
		acc.close()
		return nil, err
	}
	return acc, nil
}

// close removes the files.
func (acc *access) close() { _ = os.RemoveAll(acc.dir) } // what may be left is of no use after minutes

// fill makes key, certificate and list of known hosts, and the options that name them.
func (acc *access) fill(ctx context.Context, a *app, c *client.Client, cluster string) error {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	cert, err := c.Certificate(ctx, cluster, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))))
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"key": string(pem.EncodeToMemory(block)), "key-cert.pub": strings.TrimSpace(cert.Certificate) + "\n",
		"known_hosts": strings.TrimSpace(cert.KnownHosts) + "\n",
	} {
		if err := os.WriteFile(filepath.Join(acc.dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("no place for the key: %w", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if acc.env, err = a.connectionEnv(); err != nil {
		return err
	}
	acc.options = []string{"-F", "/dev/null"} // nothing of the user's or the machine's configuration
	for _, o := range []string{
		"IdentityFile=" + quoteOption(filepath.Join(acc.dir, "key")), "IdentitiesOnly=yes", "IdentityAgent=none",
		"CertificateFile=" + quoteOption(filepath.Join(acc.dir, "key-cert.pub")), "PreferredAuthentications=publickey",
		"UserKnownHostsFile=" + quoteOption(filepath.Join(acc.dir, "known_hosts")), "GlobalKnownHostsFile=/dev/null",
		"StrictHostKeyChecking=yes", "UpdateHostKeys=no", "CheckHostIP=no", "HostKeyAlias=" + acc.member, "User=" + cert.User,
		"ControlMaster=no", "ControlPath=none", "LogLevel=ERROR", "ProxyCommand=" + tunnelCommand(self, cluster, acc.member),
	} {
		acc.options = append(acc.options, "-o", o)
	}
	return nil
}

// tunnelCommand is what ssh runs in place of opening a connection: by a shell, after it has expanded percent signs.
func tunnelCommand(self, cluster, member string) string {
	return strings.ReplaceAll(quoteWords([]string{self, "cluster", "connect", "--", cluster, member}), "%", "%%")
}

// quoteOption keeps blanks in a value of an option together (ssh_config(5)), and its percent signs from being expanded.
func quoteOption(path string) string { return `"` + strings.ReplaceAll(path, "%", "%%") + `"` }

// connectionEnv hands the server's address and the token file on to the tunnel.
func (a *app) connectionEnv() ([]string, error) {
	addr, tokenFile := a.setting(a.connection.addr, "NEARMETAL_ADDR"), a.setting(a.connection.tokenFile, "NEARMETAL_TOKEN_FILE")
	if addr == "" {
		addr = "unix:" + filepath.Join(a.state(), config.SocketName)
	}
	var err error
	path, unix := strings.CutPrefix(addr, "unix:")
	if tokenFile == "" && !unix {
		tokenFile = filepath.Join(a.state(), config.TokenName)
	}
	if unix {
		if path, err = filepath.Abs(strings.TrimPrefix(path, "//")); err != nil {
			return nil, err
		}
		addr = "unix:" + path
	}
	if tokenFile != "" {
		if tokenFile, err = filepath.Abs(tokenFile); err != nil {
			return nil, err
		}
	}
	return []string{"NEARMETAL_ADDR=" + addr, "NEARMETAL_TOKEN_FILE=" + tokenFile}, nil
}

// findMember finds the member of a cluster, the one of rank 0 when no name is given.
func findMember(cl api.Cluster, name string) (api.MemberStatus, error) {
	var found *api.MemberStatus
	var names []string
	for i, m := range cl.Status.Members {
		if m.Phase == api.MemberReleasing || m.Phase == api.MemberSpare {
			continue
		}
		names = append(names, m.Name)
		if m.Name == name || name == "" && m.Rank == 0 {
			found = &cl.Status.Members[i]
		}
	}
	switch {
	case found == nil && (name == "" || len(names) == 0):
		return api.MemberStatus{}, &exitError{ExitConflict, fmt.Errorf("cluster %q is %s and has no member to reach yet", ref(cl), cl.Status.Phase)}
	case found == nil:
		message := fmt.Sprintf("cluster %q has no member %q", ref(cl), name)
		if s := manifest.Closest(name, names); s != "" {
			message += fmt.Sprintf("; did you mean %q?", s)
		} else {
			message += fmt.Sprintf("; 'nearmetal cluster show %s' lists them; a command stands after --", ref(cl))
		}
		return api.MemberStatus{}, &exitError{ExitNotFound, errors.New(message)}
	}
	return *found, nil
}

// reachable is findMember, and refuses a member that nobody can log in to.
func reachable(cl api.Cluster, name string) (api.MemberStatus, error) {
	found, err := findMember(cl, name)
	if err != nil {
		return found, err
	}
	switch found.Phase {
	case api.MemberReady, api.MemberUnhealthy: // a login shows what ails it
		return found, nil
	case api.MemberPaused:
		return found, &exitError{ExitConflict, fmt.Errorf("member %q is paused; wake it with 'nearmetal cluster resume %s'", found.Name, ref(cl))}
	case api.MemberSaved:
		return found, &exitError{ExitConflict, fmt.Errorf("member %q is saved; let it go on with 'nearmetal cluster restore %s'", found.Name, ref(cl))}
	default:
		text := fmt.Sprintf("member %q of cluster %q is %s", found.Name, ref(cl), found.Phase)
		if found.Message != "" {
			text += " (" + printable(found.Message) + ")"
		}
		return found, &exitError{ExitConflict, errors.New(text + " and can't be reached now; see 'nearmetal cluster show " + ref(cl) + "'")}
	}
}

// findProgram looks for a program of the OpenSSH client.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("the program %q is needed and was not found (%w); install the OpenSSH client, on Debian with "+
			"'apt-get install openssh-client'", name, err)
	}
	return path, nil
}

// runProgram runs a program in the foreground and ends as it does. Signals are passed on to it, so that what it needs can be removed
// after it.
func (a *app) runProgram(ctx context.Context, path string, args, env []string) error {
	cmd := exec.Command(path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Streams.In, a.Streams.Out, a.Streams.Err
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	hangups := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var last syscall.Signal
	pass := func(s os.Signal) {
		if last, _ = s.(syscall.Signal); last == 0 {
			last = syscall.SIGTERM
		}
		_ = cmd.Process.Signal(s) // it may have ended just now
	}
	done := ctx.Done()
	for {
		select {
		case err := <-ended:
			return endOfProgram(err, last)
		case s := <-a.Interrupts:
			pass(s)
		case s := <-hangups:
			pass(s)
		case <-done:
			done = nil
			_ = cmd.Process.Kill()
		}
	}
}

// endOfProgram carries the exit code of a program, 128 + N when signal N ended it.
func endOfProgram(err error, passedOn syscall.Signal) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return err
	case passedOn != 0:
		return &exitError{128 + int(passedOn), nil}
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return &exitError{128 + int(status.Signal()), nil}
	}
	return &exitError{exit.ExitCode(), nil}
}

// throughSSH runs an OpenSSH program with access to a member; arguments are made once it is there.
func (a *app) throughSSH(ctx context.Context, program, cluster, member string, arguments func(*access) []string) error {
	path, err := findProgram(program)
	if err != nil {
		return err
	}
	asking, cancel := context.WithCancelCause(ctx)
	stop := a.interruptible(asking, cancel)
	acc, err := a.access(asking, cluster, member)
	stop()
	if err != nil {
		if errors.Is(context.Cause(asking), errInterrupted) {
			return errInterrupted
		}
		return err
	}
	defer acc.close()
	own := arguments(acc) // may change the options
	return a.runProgram(ctx, path, append(acc.options, own...), acc.env)
}

// asRoot has ssh log in as root. Of a setting that ssh is given twice, the first counts.
func (acc *access) asRoot() {
	for i, option := range acc.options {
		if strings.HasPrefix(option, "User=") {
			acc.options[i] = "User=root"
		}
	}
}

// interruptible lets an interrupt end ctx until the function it returns is called; from then on interrupts are the caller's again.
func (a *app) interruptible(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	over, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		select {
		case <-a.Interrupts:
			cancel(errInterrupted)
		case <-ctx.Done():
		case <-over:
		}
	}()
	return func() { close(over); <-left }
}

// passesInterrupts marks a command that hands interrupts on to another program.
func passesInterrupts(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{ownInterrupts: "yes"}
	return cmd
}
