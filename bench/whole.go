package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const (
	// wholeLimit is how long one cluster may take from request to MPI, or from its deletion to machines that rest.
	wholeLimit = 10 * time.Minute
	wholeTries = 3
	wholeMiB   = 1536
	wholeCores = 2
	wholeName  = "whole"
)

// sideWarm is Nearmetal with machines that wait in their boot agents.
const sideWarm = "nearmetal, warm"

// wholeWarm is the size of the cluster that is measured with warm machines, too.
const wholeWarm = 2

// wholeBench compares clusters of whole machines with the same machines booted by hand.
type wholeBench struct {
	*bootBench
	hand  *wholePeer
	hello string
	runs  []wholeRun
	// lost are from a power cut until the member was not ready any more, the cluster was ready again, and MPI ran.
	lost [][3]float64
	site *site
}

// wholeRun is one cluster of one side: seconds from the request until the last of its machines has ended a stage; none where a side has no such stage.
type wholeRun struct {
	side  string
	size  int
	ended map[string]float64
	// own is what of that is the control plane's alone, in seconds, by what it did.
	own map[string]float64
	// gone and free are from the deletion until the cluster was gone, and until all its machines rest and are clean.
	gone, free float64
}

// The stages, from the request on. Each ends where its name says, for the last machine.
const (
	tillPlaced  = "machines chosen"
	tillOn      = "power on"
	tillDHCP    = "first DHCP packet"
	tillLoaded  = "kernel and initrd there"
	tillKernel  = "kernel runs"
	tillRooted  = "root mounted"
	tillJoined  = "agent or sshd runs"
	tillLocal   = "root wholly local"
	tillMembers = "last member ready"
	tillReady   = "cluster ready"
	tillMPI     = "MPI ran"
)

func wholeStages() []string {
	return []string{tillPlaced, tillOn, tillDHCP, tillLoaded, tillKernel, tillRooted, tillJoined, tillLocal, tillMembers, tillReady, tillMPI}
}

// wholes measures clusters of 1, 2 and 4 whole machines from request to MPI, off and warm, beside the same machines booted by hand; their release; and
// what a power cut costs.
func wholes(ctx context.Context, o options, dir string, log *slog.Logger, text *bytes.Buffer) (err error) {
	sizes, out := fitting(o.whole, machinesFor(totalBytes()))
	if len(out) > 0 {
		fmt.Fprintf(text, "Clusters of %v whole machines omitted: this machine has %s of memory.\n", out, totalMemory())
	}
	if len(sizes) == 0 {
		return nil
	}
	b := &wholeBench{bootBench: &bootBench{o: o, dir: dir, log: log, password: dir + ".password", on: map[string]time.Time{}}}
	config := vdc.Config{
		Name: "bn", ProvisioningLink: bootCable, BMCLink: "bnbmc", BMCNetwork: netip.MustParsePrefix("10.98.60.0/24"), Log: b.hears,
	}
	for i := range max(slices.Max(sizes), 2) { // a cluster of one has a spare
		config.Machines = append(config.Machines, vdc.MachineConfig{Name: fmt.Sprintf("w%d", i), Firmware: api.FirmwareBIOS, CPUs: wholeCores, MemoryMiB: wholeMiB})
	}
	if b.dc, err = vdc.Start(ctx, config); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.dc.Close()) }()
	if err := b.prepare(ctx, log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.watch.close()) }()
	busy := load()
	for pair := range o.pairs {
		for _, size := range sizes {
			sides := []string{nearmetal, sideHand}
			if size == wholeWarm {
				sides = append(sides, sideWarm)
			}
			if pair%2 == 1 {
				slices.Reverse(sides)
			}
			for _, side := range sides {
				if err := b.again(ctx, side, size); err != nil {
					return fmt.Errorf("%d machines, %s: %w", size, side, err)
				}
			}
		}
		if err := b.lose(ctx); err != nil {
			return fmt.Errorf("a power cut: %w", err)
		}
	}
	b.tell(text, sizes, busy)
	return nil
}

// prepare enrolls the machines, has them inspected, and makes what both sides need.
func (b *wholeBench) prepare(ctx context.Context, log *slog.Logger) error {
	machines := b.dc.Machines()
	if err := errors.Join(b.plug(), os.WriteFile(b.password, []byte(machines[0].Password), 0o600)); err != nil {
		return err
	}
	programs := filepath.Join(filepath.Dir(b.dir), "wholeprograms")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	built, err := measure.BuildPrograms(ctx, programs)
	if err != nil {
		return err
	}
	b.hello = built.Hello
	if err := b.open(ctx); err != nil {
		return err
	}
	digest, err := b.o.digest(ctx, b.dir)
	for _, m := range machines {
		if err == nil {
			_, err = b.o.ask(ctx, b.dir, "node", "enroll", m.Name, "--mac", m.MAC, "--power", "redfish", "--bmc", m.RedfishURL, "--bmc-user", m.User, "--bmc-password-file", b.password)
		}
	}
	for _, m := range machines {
		if err == nil {
			_, err = b.o.untilRecord(ctx, b.dir, m.Name, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.InspectedAt != nil })
		}
	}
	if err := errors.Join(err, b.site.stop()); err != nil {
		return err
	}
	log.Info("whole", "enrolled", len(machines))
	if b.hand, err = openWholePeer(ctx, b.o, b.dir, filepath.Join(filepath.Dir(b.dir), "wholebyhand"), string(digest), machines); err != nil {
		return err
	}
	b.watch, err = watchLink(bootCable)
	return err
}

// open starts the site with options.
func (b *wholeBench) open(ctx context.Context, args ...string) (err error) {
	if b.site, err = startDev(ctx, b.o, b.dir, append([]string{"--provision", bootCable}, args...)...); err != nil {
		return err
	}
	if err := errors.Join(bound(ctx, "udp", 67), wait(ctx, 5*time.Second)); err != nil { // it looks for other DHCP servers first
		return errors.Join(err, b.site.stop())
	}
	return nil
}

// again tries once more where the kernel of an emulated machine panicked: it misses a timer's beat on a busy machine.
func (b *wholeBench) again(ctx context.Context, side string, size int) error {
	for try := 1; ; try++ {
		run, err := b.run(ctx, side, size)
		if err == nil {
			b.runs = append(b.runs, run)
			b.log.Info("whole", "side", side, "size", size, "ended", run.ended, "own", run.own, "gone", run.gone, "free", run.free, "load", load())
		}
		if !errors.Is(err, errPanicked) || try == wholeTries {
			return err
		}
		b.log.Warn("whole again", "side", side, "problem", err)
	}
}

// run has one cluster, from request to MPI and back.
func (b *wholeBench) run(ctx context.Context, side string, size int) (r wholeRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*wholeLimit)
	defer cancel()
	r = wholeRun{side: side, size: size, ended: map[string]float64{}, own: map[string]float64{}}
	if side == sideHand {
		return r, b.byHand(ctx, &r)
	}
	var args []string
	rests := api.MachineOff
	if side == sideWarm {
		args, rests = []string{"--idle-off", "2h", "--warm", fmt.Sprint(size)}, api.MachineWarm
	}
	if err := b.open(ctx, args...); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.site.stop()) }()
	if err := b.rest(ctx, rests, size); err != nil {
		return r, err
	}
	return r, b.byNearmetal(ctx, &r, rests)
}

// rest waits until at least so many machines rest in a phase, and no other machine does anything.
func (b *wholeBench) rest(ctx context.Context, phase api.MachinePhase, least int) error {
	for {
		nodes, err := b.site.client.Nodes(ctx)
		if err != nil {
			return err
		}
		resting, busy := 0, ""
		for _, n := range nodes {
			if n.Machine == nil {
				continue
			}
			switch r := n.Machine.Record; {
			case r.Phase == phase && r.Tenant == nil:
				resting++
			case r.Phase == api.MachineFailed || r.Quarantine != nil:
				return fmt.Errorf("machine %s is %s: %s", n.Name, r.Phase, r.Message)
			case r.Phase != api.MachineOff || r.Tenant != nil:
				busy = fmt.Sprintf("machine %s is %s: %s", n.Name, r.Phase, r.Message)
			}
		}
		if resting >= least && busy == "" {
			return nil
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d machines are %s, want %d; %s: %w", resting, phase, least, busy, err)
		}
	}
}

// listen begins to watch the wire and the consoles of machines; the error of the first console that tells one comes through the channel.
func (b *wholeBench) listen(ctx context.Context, machines []vdc.Machine) <-chan error {
	var macs []string
	for _, m := range machines {
		macs = append(macs, m.MAC)
	}
	b.watch.begin(macs)
	ended := make(chan error, len(machines))
	for _, m := range machines {
		from := int64(0)
		if info, err := os.Stat(m.ConsoleLog); err == nil {
			from = info.Size()
		}
		go func() { ended <- b.watch.console(ctx, m.MAC, m.ConsoleLog, from) }()
	}
	return ended
}

// note takes what was seen of a machine from outside into a run, whose stages end with the last machine.
func (b *wholeBench) note(r *wholeRun, began time.Time, m vdc.Machine) {
	seen := b.watch.seen(m.MAC)
	late := func(stage string, at time.Time) {
		if at.After(began) {
			r.ended[stage] = max(r.ended[stage], at.Sub(began).Seconds())
		}
	}
	late(tillOn, b.switchedOn(m.Name))
	late(tillDHCP, seen.FirstDHCP)
	late(tillLoaded, seen.LastLoader)
	late(tillKernel, seen.Call)
	late(tillRooted, seen.Mounted)
	late(tillJoined, seen.AgentRuns)
	late(tillLocal, seen.Local)
	answers := 0.0
	for _, d := range slices.Concat(seen.Offers, seen.Scripts) {
		answers += d.Seconds()
	}
	r.own["answers"] = max(r.own["answers"], answers)
}

// byHand boots machines by hand, and powers them off.
func (b *wholeBench) byHand(ctx context.Context, r *wholeRun) (err error) {
	stop, err := b.hand.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	machines := b.dc.Machines()[:r.size]
	listening, deaf := context.WithTimeout(ctx, wholeLimit)
	defer deaf()
	consoles := b.listen(listening, machines)
	began := time.Now()
	defer func() { err = errors.Join(err, b.off(context.WithoutCancel(ctx), sideHand, machines)) }()
	if _, err := b.order(ctx, sideHand, machines); err != nil {
		return err
	}
	for range machines {
		if err := <-consoles; err != nil {
			return errors.Join(err, errors.New(b.consoles()))
		}
	}
	for i, m := range machines {
		if failed := b.watch.seen(m.MAC).Failed; failed != "" {
			return fmt.Errorf("machine %s: %s", m.Name, failed)
		}
		if err := b.hand.reachable(ctx, i); err != nil {
			return err
		}
	}
	r.ended[tillReady] = time.Since(began).Seconds()
	said, err := b.hand.mpi(ctx, b.hello, r.size)
	r.ended[tillMPI] = time.Since(began).Seconds()
	for _, m := range machines {
		b.note(r, began, m)
	}
	return errors.Join(err, wantHello(said, ranksOf(r.size)))
}

// byNearmetal has a cluster, and lets it go.
func (b *wholeBench) byNearmetal(ctx context.Context, r *wholeRun, rests api.MachinePhase) error {
	machines := b.dc.Machines()
	listening, deaf := context.WithTimeout(ctx, wholeLimit)
	defer deaf()
	consoles := b.listen(listening, machines)
	began := time.Now()
	if err := b.create(ctx, r.size); err != nil {
		return err
	}
	r.ended[tillReady] = time.Since(began).Seconds()
	if err := b.mpi(ctx, r.size); err != nil {
		return errors.Join(err, errors.New(b.consoles()))
	}
	r.ended[tillMPI] = time.Since(began).Seconds()
	cluster, err := b.site.client.Cluster(ctx, wholeName)
	if err != nil {
		return err
	}
	booted := map[string]time.Time{}
	for _, member := range cluster.Status.Members {
		m, err := b.dc.Machine(member.Node)
		if err != nil {
			return err
		}
		known, err := b.o.record(ctx, b.dir, m.Name)
		if err != nil {
			return err
		}
		if known.Record.Attempt > 1 {
			err = fmt.Errorf("%w: machine %s booted at attempt %d", errPanicked, m.Name, known.Record.Attempt)
		}
		b.note(r, began, m)
		boot := timedBoot{ordered: began, record: known}
		booted[m.Name] = boot.stage(api.StageReady)
		r.ended[tillPlaced] = max(r.ended[tillPlaced], boot.since(known.Record.Boot.DecidedAt))
		r.ended[tillMembers] = max(r.ended[tillMembers], boot.since(boot.stage(api.StageReady)))
		b.log.Info("whole", "machine", m.Name, "boot", bootStagesOf(boot))
		if err != nil {
			return errors.Join(err, b.release(ctx, r, rests))
		}
	}
	deaf()
	for range machines {
		if err := <-consoles; errors.Is(err, errPanicked) {
			return errors.Join(err, b.release(ctx, r, rests))
		}
	}
	if err := b.own(ctx, r, began, booted); err != nil {
		return err
	}
	return b.release(ctx, r, rests)
}

// own takes down what of a run is the control plane's: until machines were chosen, and at the other end what is neither their boot nor the start of their
// members, which the site's trace has. booted are the ends of the boots, by machine.
func (b *wholeBench) own(ctx context.Context, r *wholeRun, began time.Time, booted map[string]time.Time) error {
	trace, err := b.site.client.ClusterTrace(ctx, wholeName)
	if err != nil {
		return err
	}
	var started, ready time.Time
	for _, s := range trace.Spans {
		end := s.Began.Add(time.Duration(s.Seconds * float64(time.Second)))
		b.log.Info("whole", "span", s.Name, "node", s.Node, "from", s.Began.Sub(began).Seconds(), "to", end.Sub(began).Seconds())
		switch {
		case s.Name == "create":
			ready = end
		case s.Node == "":
		case end.After(started):
			started = end
		}
		if boot := booted[s.Node]; s.Name == "reachable" && !boot.IsZero() {
			r.own["start"] = max(r.own["start"], s.Began.Sub(boot).Seconds())
		}
	}
	r.own["placement"] = r.ended[tillPlaced]
	if !started.IsZero() {
		r.own["ready"] = max(ready.Sub(started).Seconds(), 0)
	}
	return nil
}

// bootStagesOf lists the stages of a boot as the site has them, in seconds since the request.
func bootStagesOf(t timedBoot) string {
	var all []string
	for _, s := range t.record.Record.Boot.Stages {
		all = append(all, fmt.Sprintf("%s %.1f", s.Stage, t.since(s.At)))
	}
	return strings.Join(all, ", ")
}

func (b *wholeBench) create(ctx context.Context, size int) error {
	request := api.ClusterRequest{Name: wholeName, Stack: api.StackMetal, Environment: builtEnvironment, Size: size}
	if _, err := b.site.client.CreateCluster(ctx, request); err != nil {
		return err
	}
	return b.site.reachOf(ctx, wholeName, api.ClusterReady)
}

// mpi runs a program of MPI in the cluster, in the way that the machines by hand do.
func (b *wholeBench) mpi(ctx context.Context, size int) error {
	if _, err := b.o.ask(ctx, b.dir, "cp", b.hello, wholeName+":hello"); err != nil {
		return err
	}
	var others []string
	for i := 1; i < size; i++ {
		others = append(others, fmt.Sprintf("%s-%d", wholeName, i))
	}
	said, err := b.o.ask(ctx, b.dir, "cluster", "ssh", wholeName, "--", spreadHello(others)+fmt.Sprintf("mpirun -n %d --map-by node ./hello", ranksOf(size)))
	return errors.Join(err, wantHello(string(said), ranksOf(size)))
}

// ranksOf is how many ranks of MPI machines run: one on each, as ranks that wait keep an emulated processor busy, but two on one, since it is about messages.
func ranksOf(machines int) int { return max(machines, 2) }

// spreadHello is a shell command, with what separates it from the next, that copies the program from the first machine to others.
func spreadHello(others []string) string {
	command := ""
	for _, host := range others {
		command += "scp -q hello " + host + ":hello && "
	}
	return command
}

// wantHello checks that all ranks said hello.
func wantHello(said string, ranks int) error {
	if got := strings.Count(said, "Hello from rank"); got != ranks {
		return fmt.Errorf("%d ranks of MPI said hello, want %d: %s", got, ranks, said)
	}
	return nil
}
