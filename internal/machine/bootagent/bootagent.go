// Package bootagent is the first process of a machine that boots over the network: it finds the network, exchanges the boot token, and
// looks at the machine (enroll, inspect), cleans it, or gives it its root and stays as its init. It is that of virtual machines, too, whose host
// gives them all that they need without a network (guest.go).
//
// All it is told comes over TLS pinned by the kernel's command line, and all it runs is verified: the manifest by signature, the root by
// its chunk list, the node agent by digest. A boot that can't go on is told to the server and on the console, in words, and never ends in
// silence. Start with Main.
package bootagent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/machine/inspection"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Agent is one boot.
type Agent struct {
	log     *slog.Logger
	args    boot.Arguments
	calls   *calls
	images  *http.Client
	modules *modules
	network *network
	welcome boot.Welcome
	// identity has the key that the node agent was certified for.
	identity trust.Identity
	reports  *reporter
	init     *supervisor
	root     *root
	begun    time.Time
	// isGuest: the machine is a virtual one, and its host starts it again if it wants to.
	isGuest bool
	// following are the interfaces that the host takes away and brings back.
	following following
	// cleanLogged are the steps of a cleaning that were printed.
	cleanLogged map[string]bool
}

// How long the parts of a boot may take.
const (
	nicDeadline     = 90 * time.Second
	carrierDeadline = 60 * time.Second
	// networkDeadline is how long server and DHCP are tried before rebooting the machine.
	networkDeadline = 10 * time.Minute
	// problemPause is how long a boot that can't go on stays, to be read, before it is tried again from the firmware.
	problemPause = time.Minute
)

// Main boots the machine. It returns only when it is not the first process of a machine.
func Main(ctx context.Context) error {
	if os.Getpid() != 1 {
		return errors.New("nearmetal-boot must be the first process of a machine that boots over the network")
	}
	a := &Agent{begun: time.Now(), images: httpClient(nil)}
	err := mountAll(firstMounts())
	a.log = newLog()
	a.init = newSupervisor(a.log)
	go a.init.children.Reap(context.WithoutCancel(ctx)) // to the machine's end
	// Should this process ever die, the kernel stops; then the machine boots again instead of standing still.
	_ = os.WriteFile("/proc/sys/kernel/panic", []byte("30"), 0o644)
	if err == nil {
		err = a.boot(ctx)
	}
	a.stopped(ctx, err)
	return err
}

// boot goes through all stages. It returns only with a problem.
func (a *Agent) boot(ctx context.Context) error {
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	if formats, isGuest := guestFormats(string(cmdline)); isGuest {
		a.isGuest = true
		return a.guest(ctx, formats)
	}
	if a.args, err = boot.ParseArguments(string(cmdline)); err != nil {
		return err
	}
	if a.calls, err = newCalls(a.args); err != nil {
		return err
	}
	if a.modules, err = openModules(a.log); err != nil {
		return err
	}
	// Drivers come from the initial RAM disk until there is a root.
	drivers, stopDrivers := context.WithCancel(ctx)
	defer stopDrivers()
	news := make(chan struct{}, 1)
	found := make(chan struct{})
	if err := a.modules.watchDevices(drivers, news, found); err != nil {
		return err
	}
	advanceClock(a.args.Time)
	if err := a.connect(ctx, news, found); err != nil {
		return err
	}
	a.reports = newReporter(a.calls, a.log, a.obey)
	go a.reports.run(ctx)
	a.reports.stage(boot.StageReport{Stage: api.StageKernel})
	switch a.welcome.Purpose {
	case api.BootEnroll, api.BootInspect:
		return a.inspect(ctx)
	case api.BootClean:
		return a.clean(ctx)
	case api.BootEnvironment, api.BootMember:
		return a.environment(ctx, stopDrivers)
	}
	return fmt.Errorf("the server requests the boot purpose %q, which is unknown to this boot agent: the agent is older than the server", a.welcome.Purpose)
}

// connect gets the network and the server's welcome; what may pass by itself is tried again for a while.
// found is closed once its NIC is there.
func (a *Agent) connect(ctx context.Context, news <-chan struct{}, found chan<- struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, networkDeadline)
	defer cancel()
	_ = linkUp(ctx, "lo")
	nicCtx, stop := context.WithTimeout(ctx, nicDeadline)
	nic, err := findNIC(nicCtx, a.args.MAC, guestlink.Interface{MAC: a.args.MAC}.IsOf, news)
	stop()
	if err != nil {
		return err
	}
	close(found)
	a.log.Info("network interface found", "interface", nic.Name, "after", time.Since(a.begun))
	if a.args.Purpose == api.BootEnvironment || a.args.Purpose == api.BootMember {
		// While the network answers. An error comes again when they are needed.
		go func() { _ = a.modules.loadAll(modulesForRoot(image.Root{Format: image.EROFS})) }()
	}
	for try := 0; ; try++ {
		err := a.tryConnect(ctx, nic)
		if err == nil {
			return nil
		}
		a.log.Error("can't reach the server", "error", err, "try", try+1)
		if refused := (*refusedError)(nil); errors.As(err, &refused) && refused.do != "" {
			a.obey(boot.Instruction{Do: refused.do, Message: refused.detail})
			return err
		}
		if isFinal(err) && try >= 2 {
			return err
		}
		if waitErr := backoff(ctx, try); waitErr != nil {
			return err
		}
	}
}

func (a *Agent) tryConnect(ctx context.Context, nic *net.Interface) error {
	if a.network == nil {
		carrier, stop := context.WithTimeout(ctx, carrierDeadline)
		defer stop()
		if err := linkUp(carrier, nic.Name); err != nil {
			return err
		}
		network, err := askDHCP(ctx, nic, "")
		if err != nil {
			return err
		}
		a.network = network
		a.init.arm(nic.Name)
		a.log.Info("address", "address", network.Address, "after", time.Since(a.begun))
	}
	return a.hello(ctx)
}

// hello exchanges the boot token.
func (a *Agent) hello(ctx context.Context) error {
	if a.calls.session != "" {
		return nil
	}
	nonce := a.init.nonce
	var macs []string
	if interfaces, err := net.Interfaces(); err == nil {
		for _, i := range interfaces {
			if len(i.HardwareAddr) == 6 {
				macs = append(macs, i.HardwareAddr.String())
			}
		}
	}
	identity, err := trust.NewIdentity("")
	if err != nil {
		return err
	}
	request, err := identity.Request()
	if err != nil {
		return err
	}
	var w boot.Welcome
	if err := a.calls.post(ctx, boot.HelloPath, boot.Hello{Token: a.args.Token, Nonce: nonce, MACs: macs, Request: request}, &w); err != nil {
		return err
	}
	a.welcome, a.calls.session, a.identity = w, w.Session, identity
	setClock(w.Time)
	a.log.Info("welcome", "name", w.Name, "purpose", w.Purpose, "after", time.Since(a.begun))
	return nil
}

// manifest is the verified manifest of what to boot.
func (a *Agent) manifest() (*image.Manifest, error) {
	if err := image.Verify(a.welcome.PublicKey, a.welcome.Manifest, a.welcome.Signature); err != nil {
		return nil, err
	}
	return image.Decode(a.welcome.Manifest, a.args.Manifest)
}

// inspect looks at the machine, reports, and does what it is told until it is told to reboot or power off.
func (a *Agent) inspect(ctx context.Context) error {
	if err := a.modules.settle(ctx); err != nil {
		return err
	}
	mountEFIVariables(unix.MS_RDONLY)
	a.log.Info("inspecting the machine")
	report := inspection.Run(ctx, a.args.MAC, a.healthDeadline())
	a.log.Info("inspected the machine", "after", time.Since(a.begun))
	for try := 0; ; {
		var next boot.Instruction
		if err := a.calls.post(ctx, boot.ReportPath, report, &next); err != nil {
			a.log.Error("the report can't be delivered", "error", err)
			if isFinal(err) && try >= 5 {
				return err
			}
			if err := backoff(ctx, try); err != nil {
				return err
			}
			try++
			continue
		}
		try = 0
		a.obey(next)
		pause := time.Duration(next.RetrySeconds * float64(time.Second))
		select {
		case <-time.After(min(max(pause, time.Second), 5*time.Minute)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// healthDeadline bounds each health check.
func (a *Agent) healthDeadline() time.Duration {
	if a.welcome.HealthDeadline > 0 {
		return a.welcome.HealthDeadline
	}
	return time.Minute
}

// obey does at once what an instruction asks of the machine's power; it prints what it says.
func (a *Agent) obey(next boot.Instruction) {
	if next.Message != "" {
		a.log.Info(next.Message)
	}
	switch next.Do {
	case "reboot":
		if next.Next != nil && a.startNext(next.Next) {
			return
		}
		a.init.end(reboot)
	case "poweroff":
		a.init.end(powerOff)
	}
}

// stopped tells the problem that ended a boot, then does what the server says, or boots again from the firmware after a while.
func (a *Agent) stopped(ctx context.Context, problem error) {
	if a.init.isEnding() {
		// What fails now fails because the machine ends, which another goroutine sees to.
		select {}
	}
	if problem == nil {
		problem = errors.New("the boot ended without a reason; this is a bug in nearmetal-boot")
	}
	a.log.Error("this boot can't continue", "problem", problem)
	if a.isGuest {
		a.init.end(powerOff)
		select {}
	}
	if a.reports != nil {
		a.reports.problem(problem)
		select {
		case <-a.reports.told():
		case <-time.After(problemPause):
		}
	}
	a.log.Error("rebooting the machine", "in", problemPause)
	select {
	case <-time.After(problemPause):
	case <-ctx.Done():
	}
	a.init.end(reboot)
	select {}
}

// advanceClock sets a clock that is behind what the server wrote into the command line: without a battery it is years, and no certificate
// would be valid yet.
func advanceClock(at time.Time) {
	if !at.IsZero() && time.Now().Before(at) {
		setClock(at)
	}
}

func setClock(at time.Time) {
	if at.IsZero() {
		return
	}
	tv := unix.NsecToTimeval(at.UnixNano())
	_ = unix.Settimeofday(&tv)
}

func newNonce() string { return rand.Text() }
