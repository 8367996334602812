package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// MachineDeadlines bound the phases of machines.
type MachineDeadlines struct {
	// Boot is from the decision to ready.
	Boot time.Duration
	// Progress is how long a machine that is being cleaned may report nothing new before its boot has failed.
	Progress time.Duration
	// Soft is how long a machine may take to go off by itself, Stop how long it may take in all.
	Soft, Stop time.Duration
	// Attempts is how often a boot is tried before the machine has failed.
	Attempts int
	// Silence is how long a machine that was told to go off, and whose power can't be read, must be silent until that is believed.
	Silence time.Duration
	// Verify is how long a machine that is off may rest before it is woken to prove that it still boots; 0: it is never woken.
	Verify time.Duration
	// IdleOff is how long a machine that nobody has stays on, waiting in its boot agent, before it goes off; 0: it goes off at once.
	IdleOff time.Duration
	// Warm is how many such machines stay on all the same.
	Warm int
}

// DefaultMachineDeadlines are for real machines, whose firmware may need minutes.
func DefaultMachineDeadlines() MachineDeadlines {
	return MachineDeadlines{Boot: 15 * time.Minute, Progress: 10 * time.Minute, Soft: time.Minute, Stop: 5 * time.Minute, Attempts: 2, Silence: 15 * time.Second, Verify: 7 * 24 * time.Hour}
}

// PowerSeen is the provisioner's knowledge of a machine's power.
type PowerSeen struct {
	// Known: the provisioner of this leader has looked at it at all.
	Known      bool
	State      api.PowerState
	ObservedAt time.Time
	// Generation and Cut are of the order carried out last, done at DoneAt.
	Generation int64
	Order      PowerOrder
	Done       bool
	DoneAt     time.Time
	Problem    string
	// Final: trying again is of no use.
	Final bool
	// Observes and ForcesOff are what this kind of switch can do.
	Observes, ForcesOff bool
}

// BootSeen is what was heard of one boot.
type BootSeen struct {
	// Generation is of the boot it is about.
	Generation int64
	Stages     []api.StageTime
	// LoaderBytes, ReadyBytes, RootBytes, PeerBytes and Local are as in api.Boot.
	LoaderBytes, ReadyBytes, RootBytes, PeerBytes int64
	Local                                         bool
	RedeemedAt                                    time.Time
	// Problem is why the machine says it can't go on.
	Problem string
	// Reported: it has sent an inspection report, with these results.
	Reported bool
	Health   []api.HealthResult
	// Clean is what a machine that is being cleaned reported last; nil: nothing yet.
	Clean *CleanSeen
	// Blocking are those of Health that keep it from being free.
	Blocking []api.HealthResult
	// LastHeard is when it last said anything.
	LastHeard time.Time
	// Restarted is when its firmware last asked what to boot while it was meant to boot nothing, in whatever generation; zero: it has not.
	Restarted time.Time
	// ToldOff is when it last asked, from its initial RAM disk, and was told to power itself off, in whatever generation; zero: it was not.
	ToldOff      time.Time
	Firmware     api.Firmware
	Architecture string
}

// AgentSeen is what is known of the node agent.
type AgentSeen struct {
	Connected      bool
	BootGeneration int64
	LastSeen       time.Time
	// PowerOffProblem is why it can't power its machine off though it was told to.
	PowerOffProblem string
}

// MachineInput is everything a decision about one machine depends on.
type MachineInput struct {
	Intent *api.MachineIntent
	// Record is nil before the first decision; FreeIndex is then the place it gets, negative when there is none left.
	Record    *api.MachineRecord
	FreeIndex int
	Power     PowerSeen
	Boot      BootSeen
	Agent     AgentSeen
	// BMC is what is known of its BMC apart from power. NewPassword makes a sealed password for it; nil: the site leaves passwords alone.
	BMC         BMCSeen
	NewPassword func() []byte
	// InUse tells, in words, what runs on it; empty for nothing.
	InUse string
	// Tenant is the member that holds all of it, released or not; nil: none does.
	Tenant *TenantSeen
	// MayVerify: no other machine is being woken to prove that it boots.
	MayVerify bool
	// WarmOthers is how many other machines wait in their boot agents, WarmSoon how many will, as far as is decided.
	WarmOthers, WarmSoon int
	// FirmwareProblem is why the firmware that it reported in this boot is not on the site's list; empty: it is, or nothing was reported.
	FirmwareProblem string
	// Drained: nobody is to get it.
	Drained bool
	// Environment reports what a name stands for: the digest, or the problem that keeps this machine from booting it.
	Environment func(name string) (digest, problem string)
	Now         time.Time
	// LeaderSince is when this leader took over: what it has not heard is not silence yet.
	LeaderSince time.Time
	Deadlines   MachineDeadlines
}

// InspectEnvironment is the environment that machines boot for inspection.
const InspectEnvironment = "inspect"

// PowerOrder is the power state that a machine should reach.
type PowerOrder string

// The orders.
const (
	OrderLeave PowerOrder = "leave"
	OrderWake  PowerOrder = "wake"
	OrderCut   PowerOrder = "cut"
)

// Order is what a machine's power should come to now, and the generation that fences the order.
func Order(r *api.MachineRecord, now time.Time) (order PowerOrder, generation int64) {
	switch {
	case MayBoot(r):
		return OrderWake, r.Boot.Generation
	case r.Stop != nil && r.Phase != api.MachineFailed && !now.Before(r.Stop.CutAt):
		return OrderCut, r.Stop.Generation
	default:
		return OrderLeave, r.Generation
	}
}

// Reached reports whether a boot has ended a stage.
func Reached(b *api.Boot, stage api.BootStage) bool {
	return b != nil && slices.ContainsFunc(b.Stages, func(s api.StageTime) bool { return s.Stage == stage })
}

// MayBoot reports whether a machine in this state is given anything to boot.
func MayBoot(r *api.MachineRecord) bool {
	return r.Boot != nil && (r.Phase == api.MachineBooting || r.Phase == api.MachineInspecting || r.Phase == api.MachineCleaning)
}

// PlanMachine returns what is to be done about a machine now.
func PlanMachine(in MachineInput) []MachineOperation {
	if in.Record == nil {
		if in.FreeIndex < 0 {
			return nil // enrolling is refused before; a race leaves it waiting for an address
		}
		return []MachineOperation{EnrollMachine{Index: in.FreeIndex}, machineEvent(in, EventMachineEnrolled, "machine %s is enrolled", in.Intent.Name)}
	}
	ops := in.note()
	if in.Intent.Hold.Number > in.Record.DoneHold {
		return append(ops, in.hold()...)
	}
	switch in.Record.Phase {
	case api.MachineEnrolled, api.MachineOff, api.MachineFailed:
		return append(ops, in.atRest()...)
	case api.MachineInspecting:
		return append(ops, in.inspecting()...)
	case api.MachineCleaning:
		return append(ops, in.cleaning()...)
	case api.MachineBooting:
		return append(ops, in.booting()...)
	case api.MachineWarm:
		return append(ops, in.warm()...)
	case api.MachineReady:
		return append(ops, in.ready()...)
	case api.MachineStopping, api.MachineRemoving:
		return append(ops, in.stopping()...)
	default:
		return append(ops, SetMachinePhase{To: api.MachineFailed, Message: fmt.Sprintf("unknown phase %q, written by a newer server", in.Record.Phase)})
	}
}

// note takes down what was observed.
func (in MachineInput) note() []MachineOperation {
	var ops []MachineOperation
	r := in.Record
	if p := in.Power; p.Known && (p.State != r.Power || api.ShortMessage(p.Problem) != r.PowerMessage) {
		ops = append(ops, NotePower{State: p.State, Message: p.Problem, At: p.ObservedAt})
	}
	ops = append(ops, in.watchBMC()...)
	if r.Boot == nil {
		return ops
	}
	b := in.Boot
	if b.Generation != r.Boot.Generation {
		b = BootSeen{}
	}
	if in.Power.Done && in.Power.Order == OrderWake && in.Power.Generation == r.Boot.Generation {
		b.Stages = append(slices.Clone(b.Stages), api.StageTime{Stage: api.StagePower, At: in.Power.DoneAt})
	}
	if in.agentOfThisBoot() {
		b.Stages = append(slices.Clone(b.Stages), api.StageTime{Stage: api.StageAgent, At: in.Now})
		if b.Local || r.Boot.Local {
			b.Stages = append(b.Stages, api.StageTime{Stage: api.StageReady, At: in.Now})
		}
	}
	if news(r, b) {
		ops = append(ops, NoteBoot{Seen: b})
	}
	return ops
}

// news reports whether something of what was heard is not in the record yet.
func news(r *api.MachineRecord, b BootSeen) bool {
	for _, s := range b.Stages {
		if !slices.ContainsFunc(r.Boot.Stages, func(have api.StageTime) bool { return have.Stage == s.Stage }) {
			return true
		}
	}
	return b.Local && !r.Boot.Local || b.LoaderBytes > r.Boot.LoaderBytes && b.Local || !b.RedeemedAt.IsZero() && r.Boot.RedeemedAt == nil ||
		b.Firmware != "" && b.Firmware != r.Firmware || b.Architecture != "" && b.Architecture != r.Architecture
}

func (in MachineInput) agentOfThisBoot() bool {
	return in.Record.Boot != nil && in.Agent.Connected && in.Agent.BootGeneration == in.Record.Boot.Generation
}

// atRest is a machine that waits for a request.
func (in MachineInput) atRest() []MachineOperation {
	r, req := in.Record, in.Intent.Request
	if in.Intent.RemoveRequestedAt != nil && !in.cleansFirst() {
		// Somebody may have pressed its button since it was looked at last. What could not be stopped is given up, and so is a BMC that says nothing.
		if r.Power != api.PowerUnknown && r.Power != "" && in.Power.ForcesOff && r.Stop == nil {
			return in.stop(api.MachineRemoving, true, "")
		}
		return in.forget(r.Phase != api.MachineFailed || r.Power == api.PowerOff)
	}
	if ops := in.foundAgain(); ops != nil {
		return ops
	}
	if ops := in.tenantAtRest(); ops != nil {
		return ops
	}
	switch {
	case req.Number > r.DoneRequest:
		return in.request(req)
	case in.Intent.Clean.Number > r.DoneClean:
		return in.cleanRequested()
	case in.Intent.Inspect > r.DoneInspect:
		return in.begin(api.BootInspect, InspectEnvironment, TakeUp{Request: r.DoneRequest, Inspect: in.Intent.Inspect})
	case r.Phase == api.MachineFailed && in.Power.Known && in.Power.State == api.PowerOff && in.Power.Observes && r.Power != api.PowerOff:
		return []MachineOperation{WakeAt{Time: in.Now}} // noted above; nothing else follows from it
	}
	if ops := in.warmUp(); ops != nil {
		return ops
	}
	return append(in.stray(), in.verify()...)
}

// begin decides a boot, or tells why there can be none.
func (in MachineInput) begin(purpose api.BootPurpose, environment string, took TakeUp) []MachineOperation {
	digest, problem := in.Environment(environment)
	if dirty := in.dirty(); dirty != "" && purpose != api.BootClean {
		problem = dirty
	}
	if problem != "" {
		rest := in.Record.Phase
		if rest == api.MachineStopping {
			rest = api.MachineOff
		}
		return in.refuse(took, rest, fmt.Sprintf("can't boot %q: %s", environment, problem))
	}
	to := api.MachineBooting
	switch purpose {
	case api.BootInspect:
		to = api.MachineInspecting
	case api.BootClean:
		to = api.MachineCleaning
	}
	deadline := in.Now.Add(in.Deadlines.Boot)
	ops := append([]MachineOperation{took}, in.bootOps(BeginBoot{Purpose: purpose, Environment: environment, Digest: digest, Deadline: deadline, Attempt: 1})...)
	return append(ops,
		SetMachinePhase{To: to},
		machineEvent(in, EventMachineBooting, "machine %s boots %s", in.Record.Name, environment),
		WakeAt{Time: deadline},
	)
}

// inspecting is a machine on its way through inspection.
func (in MachineInput) inspecting() []MachineOperation {
	if in.Boot.Generation != in.Record.Boot.Generation || !in.Boot.Reported {
		return in.trouble()
	}
	ops := []MachineOperation{NoteInspection{Health: in.Boot.Health}}
	for _, h := range in.Boot.Blocking {
		return append(ops, SetMachinePhase{To: api.MachineFailed, Message: fmt.Sprintf("health check %s failed: %s; fix it, then run: nearmetal node inspect %s",
			h.Check, h.Message, in.Record.Name)}, machineEvent(in, EventMachineFailed, "machine %s failed health check %s: %s", in.Record.Name, h.Check, h.Message))
	}
	ops = append(ops, machineEvent(in, EventMachineInspected, "machine %s passed inspection", in.Record.Name))
	if held := in.firmware(); held != nil {
		return append(ops, held...)
	}
	// If somebody wants it on, it need not go off first: waking it again resets it.
	return append(ops, in.idle()...)
}

// booting is a machine on its way to be a node.
func (in MachineInput) booting() []MachineOperation {
	if in.agentOfThisBoot() && (in.Boot.Generation == in.Record.Boot.Generation && in.Boot.Local || in.Record.Boot.Local) {
		return []MachineOperation{
			SetMachinePhase{To: api.MachineReady},
			Verified{},
			machineEvent(in, EventMachineReady, "machine %s is ready with %s", in.Record.Name, in.Record.Boot.Environment),
		}
	}
	return in.trouble()
}

// trouble looks for what keeps a boot from going on.
func (in MachineInput) trouble() []MachineOperation {
	r := in.Record
	if in.Intent.RemoveRequestedAt != nil && !in.cleansFirst() {
		return in.stop(api.MachineRemoving, true, "")
	}
	if ops := in.tenantLeaves(); ops != nil {
		return ops
	}
	if ops := in.anotherBoot(); ops != nil {
		return ops
	}
	if req := in.Intent.Request; req.Number > r.DoneRequest && req.Action != api.PowerActionOn {
		if in.Tenant.Holds() && !req.Force { // the member came after the request was found to disturb nobody
			return in.refuse(TakeUp{Request: req.Number, Inspect: r.DoneInspect}, r.Phase,
				fmt.Sprintf("can't be powered %s: it boots for cluster %s; use --force to do it anyway", req.Action, in.Tenant.Cluster))
		}
		then := ""
		if req.Action == api.PowerActionCycle {
			then = orElse(req.Environment, r.Boot.Environment)
		}
		return append([]MachineOperation{TakeUp{Request: req.Number, Inspect: r.DoneInspect}}, in.stop(api.MachineStopping, true, then)...)
	}
	ordered := in.Power.Generation == r.Boot.Generation && in.Power.Order == OrderWake
	lost, look := in.lostPower()
	switch {
	case ordered && in.Power.Final:
		return in.fail(in.Power.Problem)
	case lost:
		return in.again("lost power while booting")
	case in.Boot.Generation == r.Boot.Generation && in.Boot.Problem != "":
		return in.again(in.Boot.Problem)
	case !in.Now.Before(in.deadline()):
		return in.again(in.late())
	}
	ops := []MachineOperation{WakeAt{Time: in.deadline()}}
	if !look.IsZero() {
		ops = append(ops, WakeAt{Time: look})
	}
	return ops
}

func wantedOf(phase api.MachinePhase) string {
	switch phase {
	case api.MachineInspecting:
		return "inspected"
	case api.MachineCleaning:
		return "cleaning"
	}
	return "ready"
}

// reached tells how far a boot came.
func reached(b *api.Boot, p PowerSeen) string {
	switch {
	case len(b.Stages) > 0:
		return fmt.Sprintf("; the last completed boot stage was %q: see its console", b.Stages[len(b.Stages)-1].Stage)
	case p.Problem != "":
		return "; its power was never switched on: " + p.Problem
	default:
		return "; no boot request arrived: check its cable to the provisioning network and its boot order (network first)"
	}
}

// again tries a boot once more, or gives up.
func (in MachineInput) again(problem string) []MachineOperation {
	r := in.Record
	if r.Attempt >= in.Deadlines.Attempts {
		return in.fail(problem)
	}
	boot := in.sameBoot(r.Attempt + 1)
	return []MachineOperation{
		boot,
		SetMachinePhase{To: r.Phase, Message: fmt.Sprintf("attempt %d of %d: %s", boot.Attempt, in.Deadlines.Attempts, problem)},
		machineEvent(in, EventMachineRetry, "machine %s boots again: %s", r.Name, problem),
		WakeAt{Time: boot.Deadline},
	}
}

// sameBoot is what it boots or booted last, once more.
func (in MachineInput) sameBoot(attempt int) BeginBoot {
	b := in.Record.Boot
	again := BeginBoot{
		Purpose: b.Purpose, Environment: b.Environment, Digest: b.Digest, Member: b.Member, Deadline: in.Now.Add(in.Deadlines.Boot), Attempt: attempt, DryRun: in.dryRun(),
		Files: b.Files,
	}
	if t := in.Record.Tenant; t != nil {
		again.Cluster = t.Cluster
	}
	return again
}

func (in MachineInput) fail(problem string) []MachineOperation {
	return append(in.notCleaned(problem),
		SetMachinePhase{To: api.MachineFailed, Message: problem},
		machineEvent(in, EventMachineFailed, "machine %s failed: %s", in.Record.Name, problem),
	)
}

// ready is a machine in use, or free for it.
func (in MachineInput) ready() []MachineOperation {
	r, req := in.Record, in.Intent.Request
	if ops := in.tenantLeaves(); ops != nil && in.cleansFirst() {
		return ops
	}
	switch {
	case in.Intent.RemoveRequestedAt != nil && in.InUse != "" && !in.Intent.RemoveForce:
		message := fmt.Sprintf("removal waits until the machine is free: %s; to remove it now, use --force", in.InUse)
		if r.Message == api.ShortMessage(message) {
			return in.vanished()
		}
		return append([]MachineOperation{SetMachinePhase{To: r.Phase, Message: message}}, in.vanished()...)
	case in.Intent.RemoveRequestedAt != nil:
		return in.stop(api.MachineRemoving, false, "")
	}
	if ops := in.tenantLeaves(); ops != nil {
		return ops
	}
	switch {
	case req.Number > r.DoneRequest:
		return in.whileReady(req)
	case in.Intent.Clean.Number > r.DoneClean:
		return in.cleanReady()
	case in.Intent.Inspect > r.DoneInspect && in.InUse == "":
		return in.stop(api.MachineStopping, false, "") // once it is off it is inspected; not every machine that is on can be reset
	}
	return in.vanished()
}

// vanished looks whether a machine that was ready restarted or lost its power by itself: nothing is left of what it ran.
func (in MachineInput) vanished() []MachineOperation {
	switch {
	case !in.restarted():
	case in.Record.Tenant != nil: // a member that is gone is replaced, and its machine cleaned first
		return in.fail("restarted unexpectedly; its member is replaced")
	default:
		return in.bootsAgain()
	}
	lost, look := in.lostPower()
	switch {
	case lost:
		return []MachineOperation{
			SetMachinePhase{To: api.MachineOff, Message: "lost power unexpectedly"},
			machineEvent(in, EventMachineLostPower, "machine %s lost its power", in.Record.Name),
		}
	case !look.IsZero():
		return []MachineOperation{WakeAt{Time: look}}
	}
	return nil
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func machineEvent(in MachineInput, reason, format string, args ...any) MachineOperation {
	return Emit{Reason: reason, Message: fmt.Sprintf(format, args...), Node: in.Intent.Name}
}
