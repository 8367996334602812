package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/bmcguard"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/machine/compatibility"
	"github.com/nearmetal/nearmetal/internal/machine/firmwarelist"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/health"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/pool"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// Provisioner carries out what is decided about machines' power; internal/machine/provisioner provides it.
type Provisioner interface {
	Run(ctx context.Context) error
	Set(desired provisioner.Desired)
	Observed() []provisioner.Observed
	Changed() <-chan struct{}
}

// Sensors reads the sensors of machines; internal/machine/sensors provides it.
type Sensors interface {
	Run(ctx context.Context) error
	Set(machines []sensors.Machine)
	News() map[string]sensors.News
	// Sensors returns what was read of a machine last; nil: nothing was.
	Sensors(uid string) *api.MachineSensors
	Changed() <-chan struct{}
}

// Provisioning is a leader's means to care for machines.
type Provisioning struct {
	// New makes the executor of one leadership.
	New func() Provisioner
	// Sensors reads the machines' sensors; nil: nobody does.
	Sensors Sensors
	// SetTable gives network boot the table of its answers.
	SetTable func(netboot.Table)
	Heard    *bootapi.Heard
	Network  netboot.Network
	// LoaderURL is the URL of the loader for x86-64 UEFI firmware that boots by HTTP; empty: there is none.
	LoaderURL string
	// Seal and Unseal close and open a BMC's password, bound to whose it is.
	Seal      func(uid string, secret []byte) ([]byte, error)
	Unseal    func(uid string, sealed []byte) ([]byte, error)
	Deadlines lifecycle.MachineDeadlines
	// RotatePasswords changes the password of a machine's BMC after each member that had the machine.
	RotatePasswords bool
	// Firmware is the list of firmware that machines may have; nil: any.
	Firmware *firmwarelist.List
	// BootAgent is the initrd with the boot agent, loaded behind that of each image.
	BootAgent image.Digest
}

// Images are the built environments of the site.
type Images interface {
	// Load reads a manifest; the error is fs.ErrNotExist when there is none.
	Load(digest image.Digest) (*image.Manifest, error)
	// Signature is the site's, of that manifest, made with PublicKey's other half.
	Signature(digest image.Digest) ([]byte, error)
	PublicKey() []byte
	// Complete tells, by a nil error, that all that a manifest names is there.
	Complete(digest image.Digest) error
	// Collect removes what no manifest in use names and was not stored within the grace time.
	Collect(inUse []image.Digest, grace time.Duration) (freedBytes int64, err error)
}

// MemberFiles is the site's store of the files of paused members.
type MemberFiles interface {
	// CollectContent removes what is not in use and was not stored within the grace time.
	CollectContent(inUse []image.Digest, grace time.Duration) ([]image.Blob, error)
}

// provision runs the executor of this leadership; what it returns ends it.
func (l *leader) provision(ctx context.Context) (end func()) {
	if l.cfg.Provisioning == nil {
		return func() {}
	}
	l.provisioner = l.cfg.Provisioning.New()
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	run := func(name string, run func(context.Context) error) {
		running.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				l.log.ErrorContext(ctx, name+" stopped", "error", err)
			}
		})
	}
	run("the provisioner", l.provisioner.Run)
	if l.cfg.Provisioning.Sensors != nil {
		run("the reading of sensors", l.cfg.Provisioning.Sensors.Run)
	}
	return func() { cancel(); running.Wait() }
}

// machines plans every machine and makes the plans true.
func (p *pass) machines(ctx context.Context) error {
	if p.cfg.Provisioning == nil {
		return nil
	}
	var errs []error
	for _, problem := range p.cfg.Provisioning.Heard.Problems() {
		p.log.WarnContext(ctx, "network boot", "problem", problem)
	}
	seen := map[string]provisioner.Observed{}
	for _, o := range p.provisioner.Observed() {
		seen[o.UID] = o
	}
	indexes := pool.New(0, p.cfg.Provisioning.Network.Machines.Size()-1)
	all := slices.Collect(p.view.Machines())
	for _, m := range all {
		if m.Record != nil {
			indexes.Hold(m.Record.Index, m.UID())
		}
	}
	// One machine at a time proves that it boots: a rack of them would be felt by all who wait for machines, and by the mains.
	p.verifying = slices.ContainsFunc(all, func(m *state.Machine) bool { return m.Record != nil && m.Record.Phase == api.MachineInspecting })
	p.warm, p.warmSoon = 0, 0
	for _, m := range all {
		p.countWarm(m.Record, 1)
	}
	var decided []decidedMachine
	for i := range all {
		if len(decided) >= machinesPerPass {
			p.machineAt = (p.machineAt + i) % len(all)
			p.soonerRaw(p.raw)
			break
		}
		m := all[(p.machineAt+i)%len(all)]
		change, err := decision.ApplyMachine(&m.Intent, m.Record, lifecycle.PlanMachine(p.machineInput(m, seen[m.UID()], indexes)), p.now)
		if err != nil {
			errs = append(errs, fmt.Errorf("machine %q: %w", m.Name(), err))
			continue
		}
		if at := change.WakeAt; !at.IsZero() && !at.After(p.now) {
			p.sooner(p.now.Add(lookAgain)) // what was due has been looked at: it waits for something else, and nobody knows for how long
		} else {
			p.sooner(at)
		}
		if change.Dirty && !change.Forget {
			indexes.Hold(change.Record.Index, m.UID())
		}
		if change.Dirty || len(change.Events) > 0 {
			decided = append(decided, decidedMachine{m, change})
		}
		p.verifying = p.verifying || change.Record.Phase == api.MachineInspecting
		p.countWarm(m.Record, -1)
		p.countWarm(&change.Record, 1)
	}
	err := p.commitMachines(ctx, decided)
	if errors.Is(err, store.ErrNotLeader) {
		return err
	}
	errs = append(errs, err, p.strangers(ctx))
	return errors.Join(errs...)
}

// machinesPerPass bounds how many machines are decided on, and how many strangers taken in, in one pass, each by a commit: when a thousand
// boot together, clusters that lost a member are not to wait for all of them. The next pass goes on with those that come after.
const machinesPerPass = 50

// lookAgain is the pause before a machine is looked at again that waits for a time that has passed: without one the leader would do nothing
// else.
const lookAgain = time.Second

// commitsAtOnce is how many machines are committed at once: each waits for the disk, which writes down many together as fast as one.
const commitsAtOnce = 32

// decidedMachine is what was decided about a machine and is not true yet.
type decidedMachine struct {
	machine *state.Machine
	change  decision.MachineChange
}

// commitMachines makes decisions true, in any order: no two are about one machine. A machine that has changed meanwhile is looked at again.
func (p *pass) commitMachines(ctx context.Context, decided []decidedMachine) error {
	errs, revisions := make([]error, len(decided)), make([]int64, len(decided))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(commitsAtOnce)
	for i, d := range decided {
		group.Go(func() error {
			var err error
			revisions[i], err = p.commitMachine(ctx, d.machine, d.change)
			if errors.Is(err, store.ErrNotLeader) {
				return err // nor would the others be taken
			}
			if err != nil && !errors.Is(err, store.ErrConflict) {
				errs[i] = fmt.Errorf("machine %q: %w", d.machine.Name(), err)
			}
			return nil
		})
	}
	err := group.Wait()
	for _, revision := range revisions {
		p.committed = max(p.committed, revision)
	}
	if err != nil {
		return err
	}
	return errors.Join(errs...)
}

// commitMachine makes one decision true, then records its events. It returns the revision of the commit, 0 when there was none.
func (p *pass) commitMachine(ctx context.Context, m *state.Machine, change decision.MachineChange) (revision int64, err error) {
	switch {
	case !change.Dirty:
	case change.Forget:
		if revision, err = p.writer.ForgetMachine(ctx, m); err != nil {
			return 0, err
		}
		p.cfg.Provisioning.Heard.ForgetMachine(m.UID())
	default:
		if revision, err = p.writeMachine(ctx, m, change); err != nil {
			return revision, err
		}
	}
	return revision, p.emit(ctx, change.Events)
}

func (p *pass) writeMachine(ctx context.Context, m *state.Machine, change decision.MachineChange) (revision int64, err error) {
	write := state.MachineWrite{Record: change.Record}
	if change.Inspected {
		report, ok := p.cfg.Provisioning.Heard.Report(m.UID(), m.Record.Boot.Generation)
		if !ok {
			return 0, errors.New("the inspection was superseded")
		}
		hardware := withRoles(report.Hardware, m.Intent.Spec.MACs)
		hardware.FirmwareVariables = firstVariables(m.Hardware, hardware)
		write.Hardware = &hardware
	}
	return p.writer.CommitMachine(ctx, m, write)
}

// firstVariables are the firmware's variables that a cleaning leaves: those that the machine had when it was first inspected with this version of its
// firmware. What came since may be a tenant's.
func firstVariables(was *api.Hardware, now api.Hardware) []string {
	if was != nil && len(was.FirmwareVariables) > 0 && was.FirmwareVersion == now.FirmwareVersion {
		return was.FirmwareVariables
	}
	return now.FirmwareVariables
}

// withRoles marks the NICs that the machine is provisioned by.
func withRoles(hardware api.Hardware, macs []string) api.Hardware {
	hardware.NICs = slices.Clone(hardware.NICs)
	for i := range hardware.NICs {
		if slices.Contains(macs, strings.ToLower(hardware.NICs[i].MAC)) {
			hardware.NICs[i].Role = "provisioning"
		}
	}
	return hardware
}

// machineInput is what a decision about one machine depends on.
func (p *pass) machineInput(m *state.Machine, seen provisioner.Observed, indexes *pool.Pool[int]) lifecycle.MachineInput {
	in := lifecycle.MachineInput{
		Intent: &m.Intent, Record: m.Record, FreeIndex: -1, Now: p.now, LeaderSince: p.since, Deadlines: p.cfg.Provisioning.Deadlines,
		Environment: func(name string) (string, string) { return p.bootable(m, name) },
	}
	if m.Record == nil {
		if free, ok := indexes.Lowest(); ok {
			in.FreeIndex = free
		}
		return in
	}
	if seen.UID == m.UID() {
		in.Power, in.BMC = p.powerSeen(seen), p.bmcSeen(seen.Guarded)
	}
	if p.cfg.Provisioning.RotatePasswords && m.Intent.Spec.Power.User != "" && len(m.Intent.Sealed) > 0 {
		in.NewPassword = func() []byte { return p.newPassword(m.UID()) }
	}
	in.Boot = p.cfg.Provisioning.Heard.Seen(m.UID())
	in.FirmwareProblem = p.cfg.Provisioning.Firmware.Problem(p.cfg.Provisioning.Heard.Hardware(m.UID(), m.Record.Generation))
	in.Boot.Blocking = health.DefaultPolicy().Blocks(in.Boot.Health)
	if n := p.view.Agent(m.Name()); n != nil {
		connected, last := p.cfg.Agents.Connected(m.Name())
		in.Agent = lifecycle.AgentSeen{
			Connected: connected, BootGeneration: n.BootGeneration, PowerOffProblem: p.cfg.Agents.PowerOffProblem(m.Name()),
		}
		if !last.IsZero() {
			in.Agent.LastSeen = p.now.Add(last.Sub(p.raw))
		}
	}
	in.Tenant, in.MayVerify = p.tenantOf(m.Name()), !p.verifying
	if n := p.view.Node(m.Name()); n != nil {
		in.Drained = n.Drained()
	}
	p.countWarm(m.Record, -1)
	in.WarmOthers, in.WarmSoon = p.warm, p.warmSoon
	p.countWarm(m.Record, 1)
	// Only when somebody asks something of the machine.
	if m.PowerPending() != nil || m.Intent.Inspect > m.Record.DoneInspect || m.Intent.RemoveRequestedAt != nil || m.Intent.Clean.Number > m.Record.DoneClean ||
		m.Intent.Hold.Number > m.Record.DoneHold || m.Record.Phase == api.MachineOff && m.Record.Power == api.PowerOn {
		if on := p.view.OnNode(m.Name()); len(on) > 0 {
			in.InUse = p.inUse(m.Name(), on)
		}
	}
	return in
}

// countWarm counts a machine, or takes it out again: one that waits in its boot agent, and one that will, being inspected.
func (p *pass) countWarm(r *api.MachineRecord, by int) {
	switch {
	case r == nil:
	case r.Phase == api.MachineWarm:
		p.warm += by
	case r.Phase == api.MachineInspecting:
		p.warmSoon += by
	}
}

// powerSeen is what the provisioner saw, in the leader's time.
func (p *pass) powerSeen(o provisioner.Observed) lifecycle.PowerSeen {
	at := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return p.now.Add(t.Sub(p.raw))
	}
	return lifecycle.PowerSeen{
		// There is nothing to wait for where the power can't be read.
		Known: !o.ObservedAt.IsZero() || o.Done || o.Final || o.Problem != "" || !o.Abilities.Observes,
		State: o.State, ObservedAt: at(o.ObservedAt), Generation: o.Generation,
		Order: lifecycle.PowerOrder(o.Order), Done: o.Done, DoneAt: at(o.DoneAt), Problem: o.Problem, Final: o.Final,
		Observes: o.Abilities.Observes, ForcesOff: o.Abilities.ForcesOff,
	}
}

// bmcSeen is what the provisioner knows of a BMC itself, in the leader's time.
func (p *pass) bmcSeen(g provisioner.Guarded) lifecycle.BMCSeen {
	out := lifecycle.BMCSeen{
		Number: g.Number, Done: g.Done, Problem: g.Problem, Final: g.Final, Host: g.Host, HostReason: g.HostReason, Baseline: g.Baseline, Unwatched: g.Unwatched,
		Restored: g.Restored, Rotated: g.Rotated, Unrotated: g.Unrotated, Drift: g.Drift,
	}
	if !g.WatchedAt.IsZero() {
		out.WatchedAt = p.now.Add(g.WatchedAt.Sub(p.raw))
	}
	return out
}

// newPassword makes a password for a machine's BMC and seals it; nil where that fails, which is logged.
func (p *pass) newPassword(uid string) []byte {
	sealed, err := p.cfg.Provisioning.Seal(uid, []byte(bmcguard.NewPassword()))
	if err != nil {
		p.log.Error("a new BMC password can't be sealed", "error", err)
		return nil
	}
	return sealed
}

// inUse says whose members a machine carries.
func (p *pass) inUse(machine string, assignments []string) string {
	var names []string
	for _, c := range p.view.ClustersOnNode(machine) {
		names = append(names, c.Name())
	}
	return fmt.Sprintf("it runs %d members of cluster %s", len(assignments), strings.Join(names, ", "))
}

// bootable tells which image a machine would boot for an environment's name, or why it can't.
func (p *pass) bootable(m *state.Machine, name string) (digest, problem string) {
	img := p.view.ImageOf(name)
	switch {
	case name == "":
		return "", "no environment is given; name one with --env"
	case img == nil:
		return "", fmt.Sprintf("environment %q is not built; run: nearmetal env build %s", name, name)
	}
	if !slices.Contains(img.Stacks, api.StackMetal) {
		return "", "it has no kernel for bare metal; add a kernel to its recipe and build it again"
	}
	if m.Hardware != nil {
		if problems := compatibility.Check(m.Hardware, *img); len(problems) > 0 {
			return "", strings.Join(problems, "; ")
		}
	}
	return img.Digest, ""
}

// strangers takes in the machines that carry a valid enrolment token.
func (p *pass) strangers(ctx context.Context) error {
	var errs []error
	taken := 0
	for _, s := range p.cfg.Provisioning.Heard.Strangers() {
		if taken >= machinesPerPass {
			p.soonerRaw(p.raw)
			break
		}
		if s.Token == "" || p.view.MachineByMAC(s.MAC) != nil {
			p.cfg.Provisioning.Heard.ForgetStranger(s.MAC)
			continue
		}
		taken++
		problem, err := p.enroll(ctx, s)
		switch {
		case errors.Is(err, store.ErrNotLeader):
			return err
		case err != nil:
			errs = append(errs, fmt.Errorf("unknown machine %s: %w", s.MAC, err))
			continue
		case problem == "":
		case p.view.Candidate(s.MAC) == nil || p.view.Candidate(s.MAC).Problem != problem: // it says the same every few seconds
			_, err = p.cfg.Repo.UpsertCandidate(ctx, s.MAC, func(c *api.Candidate) { c.Problem = problem })
			errs = append(errs, err)
		}
		p.cfg.Provisioning.Heard.ForgetStranger(s.MAC)
	}
	return errors.Join(errs...)
}

// tenantOf is the member that has all of a machine, the one that holds it before one that is released; nil: none has.
func (p *pass) tenantOf(machine string) (tenant *lifecycle.TenantSeen) {
	for _, c := range p.view.ClustersOnNode(machine) {
		for a, ref := range c.AllWithRef() {
			if a.Node != machine || !a.ByProvisioner() || a.Spare || tenant.Holds() {
				continue
			}
			tenant = &lifecycle.TenantSeen{Assignment: a.ID, Cluster: c.Name(), Environment: a.Environment, Digest: a.EnvironmentDigest, Released: ref.Releasing}
			tenant.Paused = !ref.Releasing && lifecycle.OffInPause(c.Record, a)
			if f := lifecycle.FilesOf(c.Record, a.Member); f != nil && !ref.Releasing {
				tenant.Files = &f.SavedFiles
			}
		}
	}
	return tenant
}
