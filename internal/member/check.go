package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

const (
	// probeTimeout bounds one look at whether the member is still ready, probeTimeoutVM a look in a virtual machine: its processors may be emulated.
	// probeFailures is how many failures in a row are believed.
	probeTimeout   = 10 * time.Second
	probeTimeoutVM = 30 * time.Second
	probeFailures  = 3
	// lastWordsBytes bounds what a failed check's message quotes of its output.
	lastWordsBytes = 200
)

// watch looks again and again whether the member, which was ready, still is.
func (a *agent) watch(ctx context.Context, said *lastLine) {
	a.health.begin()
	timeout, isVM := probeTimeout, a.cfg.Link != nil && a.cfg.Link.Kind == memberconfig.LinkSerial
	if isVM {
		timeout = probeTimeoutVM
	}
	probe := &trial{
		what: "SSH to the member's own address", interval: a.cfg.ProbeEvery, timeout: timeout, failures: probeFailures, sparing: isVM,
		run: func(ctx context.Context) error {
			if err := a.hasAddress(); err != nil {
				return err
			}
			if err := a.readBanner(ctx); err != nil {
				return fmt.Errorf("%w; sshd's last output: %s", err, said.get())
			}
			return nil
		},
		now: time.Now, report: func(reason string) { a.health.report("probe", reason) },
	}
	pause(ctx, a.cfg.ProbeEvery)
	go a.watchSlurm(ctx)
	probe.loop(ctx)
}

// watchSlurm looks whether jobs of Slurm can still run in the member.
func (a *agent) watchSlurm(ctx context.Context) {
	look := &trial{
		what: "Slurm", interval: slurmWatch, timeout: 2 * slurmAsk, failures: probeFailures, run: a.slurm.usable, now: time.Now,
		report: func(reason string) { a.health.report("slurm", reason) },
	}
	look.loop(ctx)
}

// hasAddress looks for the member's address on its interfaces: sshd could be reached at it from inside without any of them.
func (a *agent) hasAddress() error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			return err
		}
		for _, address := range addresses {
			network, ok := address.(*net.IPNet)
			if !ok || !network.IP.Equal(a.cfg.Address.AsSlice()) {
				continue
			}
			if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagRunning == 0 {
				return fmt.Errorf("interface %s, which has the address %s, is down or has no carrier", i.Name, a.cfg.Address)
			}
			return nil
		}
	}
	return fmt.Errorf("no interface of the member has the address %s", a.cfg.Address)
}

// runCheck runs a check once, as a job would run, and returns why it failed. When ctx ends it is killed.
func (a *agent) runCheck(ctx context.Context, check api.Check) error {
	if len(check.Command) == 0 {
		return errors.New("the check has no command")
	}
	var said lastWords
	env := userEnv(a.cfg)
	env["NEARMETAL_CHECK"] = check.Name
	run, err := launch(a.cfg, a.children, a.cfg.User.Home, env, check.Command, &said)
	if err != nil {
		return err
	}
	status, _ := run.wait(ctx.Done(), run.kill)
	run.collect()
	words := said.get()
	if words != "" {
		words = ": " + words
	}
	switch {
	case status.Signaled():
		return fmt.Errorf("ended by signal %s%s", unix.SignalName(status.Signal()), words)
	case status.ExitStatus() != 0:
		return fmt.Errorf("exit code %d%s", status.ExitStatus(), words)
	default:
		return nil
	}
}

// lastWords remembers the beginning of the last line that was written and is not blank.
type lastWords struct {
	line, last []byte
}

func (l *lastWords) Write(p []byte) (int, error) {
	for piece := range bytes.Lines(p) {
		text := bytes.TrimSuffix(piece, []byte("\n"))
		l.line = append(l.line, text[:min(len(text), lastWordsBytes-len(l.line))]...)
		if len(text) < len(piece) {
			l.endLine()
		}
	}
	return len(p), nil
}

func (l *lastWords) endLine() {
	if line := bytes.TrimSpace(l.line); len(line) > 0 {
		l.last = append(l.last[:0], line...)
	}
	l.line = l.line[:0]
}

// get returns the line; nothing may be written any more.
func (l *lastWords) get() string {
	l.endLine()
	return strings.ToValidUTF8(string(l.last), "?")
}
