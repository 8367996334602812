package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/testbed/fleet"
	"github.com/nearmetal/nearmetal/testbed/fleet/cycle"
)

// enrolmentLimit is how long enrolment may take in all.
const enrolmentLimit = 8 * time.Minute

// passed is when each machine passed a stage, in seconds from the beginning; NaN: never.
type passed []float64

// enrolmentRun is one enrolment of many machines.
type enrolmentRun struct {
	begun time.Time
	fleet *fleet.Fleet
	bmcs  *cycle.BMCs

	mu     sync.Mutex
	stages map[string]passed
	failed []string
	boots  sync.WaitGroup
}

// The stages of an enrolment that machines themselves pass; two more are read from the site's records.
const (
	stageOn       = "powered on"
	stageAddress  = "kernel and initrd fetched"
	stageHello    = "token exchanged"
	stageReported = "report accepted, ordered off"
	stageStored   = "inspection stored"
	stageOff      = "recorded as off"
)

// enrolment measures how a site takes in many machines at once: they are listed in a file, woken by Redfish, boot over the network, are
// inspected and go off again. Machines and BMCs are simulated, the protocols are real, and so is the site.
func enrolment(ctx context.Context, o options, dir string, log *slog.Logger, text *bytes.Buffer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, enrolmentLimit)
	defer cancel()
	c, err := layCable(ctx, o, filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	restore, err := roomForNeighbours(4 * o.enrol)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	r := &enrolmentRun{stages: map[string]passed{}}
	for _, stage := range []string{stageOn, stageAddress, stageHello, stageReported, stageStored, stageOff} {
		r.stages[stage] = make(passed, o.enrol)
		for i := range o.enrol {
			r.stages[stage][i] = math.NaN()
		}
	}
	if r.fleet, err = fleet.New(fleet.Config{Interface: nicLink, Namespace: &c.clients, Seed: 1, Patience: 4 * time.Second}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.fleet.Close()) }()
	if r.bmcs, err = cycle.StartBMCs(ctx, func(i int) { r.boots.Go(func() { r.boot(ctx, i) }) }, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.bmcs.Close()); r.boots.Wait() }()
	site, err := startDev(ctx, o, dir, "--provision", bootLink, "--machine-range", "10.77.16.1-10.77.47.254")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.stop()); cancel() }()
	if err := bound(ctx, "udp", 67); err != nil {
		return err
	}
	if err := wait(ctx, 5*time.Second); err != nil { // it looks for other DHCP servers first
		return err
	}
	list := filepath.Join(filepath.Dir(dir), "machines.json")
	if err := r.list(list, o.enrol); err != nil {
		return err
	}
	before := cpuOf(site.process.Process.Pid)
	r.begun = time.Now()
	if _, err := o.ask(ctx, dir, "node", "enroll", "-f", list); err != nil {
		return err
	}
	enrolled := time.Since(r.begun)
	log.Info("enrolment", "enrolled", o.enrol, "seconds", enrolled.Seconds())
	if err := r.follow(ctx, site, o.enrol, log); err != nil {
		return errors.Join(err, errors.New(r.firstFailure()), errors.New(endOf(dir+".log")))
	}
	r.write(text, o.enrol, enrolled, cpuOf(site.process.Process.Pid)-before)
	return nil
}

// list writes the file with the machines.
func (r *enrolmentRun) list(path string, n int) error {
	var all []api.EnrollRequest
	for i := range n {
		all = append(all, api.EnrollRequest{Name: "m" + strconv.Itoa(i), Password: cycle.Password, Inspect: true, Spec: api.MachineSpec{
			MACs: []string{r.fleet.Machine(i).MAC.String()}, Power: cycle.Control(i),
		}})
	}
	data, err := json.Marshal(map[string]any{"machines": all})
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func (r *enrolmentRun) pass(stage string, i int, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if math.IsNaN(r.stages[stage][i]) {
		r.stages[stage][i] = at.Sub(r.begun).Seconds()
	}
}

// boot is a machine from its power button on.
func (r *enrolmentRun) boot(ctx context.Context, i int) {
	on := time.Now()
	r.pass(stageOn, i, on)
	m := r.fleet.Machine(i)
	s, err := m.Boot(ctx)
	r.bmcs.Set(i, false)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.failed = append(r.failed, err.Error())
		return
	}
	r.pass(stageAddress, i, on.Add(s.DHCP+s.Loader))
	r.pass(stageHello, i, on.Add(s.DHCP+s.Loader+s.Kernel))
	r.pass(stageReported, i, on.Add(s.Total()))
}

// follow reads the site's records until all machines were inspected and are off.
func (r *enrolmentRun) follow(ctx context.Context, site *site, n int, log *slog.Logger) error {
	last := time.Now()
	for {
		nodes, err := site.client.Nodes(ctx)
		if err != nil {
			return err
		}
		inspected, off := 0, 0
		for _, node := range nodes {
			i, err := strconv.Atoi(strings.TrimPrefix(node.Name, "m"))
			if err != nil || node.Machine == nil || node.Machine.Record.InspectedAt == nil {
				continue
			}
			inspected++
			r.pass(stageStored, i, *node.Machine.Record.InspectedAt)
			if node.Machine.Record.Phase == api.MachineOff {
				off++
				r.pass(stageOff, i, node.Machine.Record.ChangedAt)
			}
		}
		if off == n {
			return nil
		}
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			r.mu.Lock()
			log.Info("enrolment", "inspected", inspected, "off", off, "failed_boots", len(r.failed))
			r.mu.Unlock()
		}
		if err := wait(ctx, time.Second); err != nil {
			return fmt.Errorf("of %d machines %d were inspected and %d are off: %w", n, inspected, off, err)
		}
	}
}

func (r *enrolmentRun) firstFailure() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failed) == 0 {
		return "no boot failed"
	}
	return r.failed[0]
}

// write tells the stages: how far apart the first, the middle and the last machine are.
func (r *enrolmentRun) write(text *bytes.Buffer, n int, enrolled time.Duration, cpu float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(text, "Enrolment of %d simulated machines with fake Redfish BMCs, at load %s: seconds from the command to the first, median and last machine, machines/min\n",
		n, load())
	rate := func(seconds float64) float64 { return float64(n) / seconds * 60 }
	fmt.Fprintf(text, "  %-32s %39.1f %8.0f\n", "enrolled", enrolled.Seconds(), rate(enrolled.Seconds()))
	for _, stage := range []string{stageOn, stageAddress, stageHello, stageReported, stageStored, stageOff} {
		at := r.stages[stage]
		last := measure.Quantile(at, 1)
		fmt.Fprintf(text, "  %-32s %12.1f %12.1f %13.1f %8.0f\n", stage, measure.Quantile(at, 0), measure.Median(at), last, rate(last))
	}
	fmt.Fprintf(text, "  server's CPU %.1f s (%.1f ms a machine); BMCs asked %d times (%.1f a machine); %d boots failed and were tried again\n\n",
		cpu, cpu/float64(n)*1000, r.bmcs.Requests(), float64(r.bmcs.Requests())/float64(n), len(r.failed))
}

// roomForNeighbours raises the bounds of the kernel's table of neighbours, which all network namespaces share and only the first one can
// set; what is returned puts them back.
func roomForNeighbours(entries int) (restore func() error, err error) {
	host, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getppid())) // whose child this is, in the bench's namespaces
	if err != nil {
		return nil, err
	}
	before := map[string][]byte{}
	restore = func() error {
		err := host.Do(func() (err error) {
			for name, value := range before {
				err = errors.Join(err, os.WriteFile(name, value, 0o644))
			}
			return err
		})
		return errors.Join(err, host.Close())
	}
	err = host.Do(func() error {
		for i, name := range []string{"gc_thresh3", "gc_thresh2", "gc_thresh1"} {
			name = "/proc/sys/net/ipv4/neigh/default/" + name
			value, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			before[name] = value
			if now, err := strconv.Atoi(strings.TrimSpace(string(value))); err != nil || now >= entries>>i {
				continue
			}
			if err := os.WriteFile(name, []byte(strconv.Itoa(entries>>i)), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the kernel's table of neighbours: %w", err), restore())
	}
	return restore, nil
}
