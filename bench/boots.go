package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// The virtual data centre of the bench, and the server's address in it.
const (
	bootCable    = "bnprov"
	bootServer   = "10.99.60.1"
	bootHTTPPort = config.ImagePort
	bootTLSPort  = config.BootPort
	// bootLimit is how long a boot may take.
	bootLimit = 6 * time.Minute
	bootTries = 4
)

// The sides. The last one is measured once, not in pairs: it differs in one known thing.
const (
	sideHand  = "by hand"
	sidePlain = "by hand, plain"
)

// bootBench compares boots of the same machines by different servers.
type bootBench struct {
	o        options
	dir      string // the site's state
	dc       *vdc.DataCentre
	watch    *watch
	peer     *bootPeer
	password string
	log      *slog.Logger
	results  map[string][]timedBoot

	mu sync.Mutex
	on map[string]time.Time // when a machine was switched on last, by its hypervisor
}

// hears takes what the data centre says.
func (b *bootBench) hears(format string, args ...any) {
	name, ok := strings.CutSuffix(fmt.Sprintf(format, args...), " is on")
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on[name] = time.Now()
}

// timedBoot is one machine's boot.
type timedBoot struct {
	machine string
	ordered time.Time
	on      time.Time
	seen    seenBoot
	// record is what the site says of its own; zero by hand.
	record api.MachinePart
}

// boots measures what Nearmetal adds to a boot: two machines, with BIOS and with UEFI, woken at the same moment, are served by it, and by hand
// by dnsmasq and nginx, in turn.
func boots(ctx context.Context, o options, dir string, log *slog.Logger, text *bytes.Buffer) (err error) {
	b := &bootBench{o: o, dir: dir, log: log, password: dir + ".password", results: map[string][]timedBoot{}, on: map[string]time.Time{}}
	dc, err := vdc.Start(ctx, vdc.Config{
		Name: "bn", ProvisioningLink: bootCable, BMCLink: "bnbmc", BMCNetwork: netip.MustParsePrefix("10.98.60.0/24"),
		Machines: []vdc.MachineConfig{{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: 1536}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: 1536}},
		Log:      b.hears,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dc.Close()) }()
	b.dc = dc
	if err := errors.Join(b.plug(), os.WriteFile(b.password, []byte(dc.Machines()[0].Password), 0o600)); err != nil {
		return err
	}
	if b.watch, err = watchLink(bootCable); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.watch.close()) }()
	digest, err := b.enroll(ctx)
	if err != nil {
		return err
	}
	if b.peer, err = openBootPeer(o, dir, filepath.Join(filepath.Dir(dir), "bootbyhand"), digest); err != nil {
		return err
	}
	busy := load()
	for pair := range o.pairs {
		order := []string{nearmetal, sideHand}
		if pair%2 == 1 {
			slices.Reverse(order)
		}
		if pair == 0 {
			order = append(order, sidePlain)
		}
		for _, side := range order {
			if err := b.run(ctx, side); err != nil {
				return fmt.Errorf("boot %d %s: %w", pair+1, side, err)
			}
		}
	}
	b.write(text, busy)
	return nil
}

// plug gives the server its addresses.
func (b *bootBench) plug() error {
	link, err := netlink.LinkByName(bootCable)
	if err != nil {
		return err
	}
	for _, a := range []string{bootServer + "/24", "fd00:60::1/64"} {
		address, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// enroll takes the machines in, and returns the digest of what they boot.
func (b *bootBench) enroll(ctx context.Context) (digest string, err error) {
	site, err := startDev(ctx, b.o, b.dir, "--provision", bootCable)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, site.stop()) }()
	for _, m := range b.dc.Machines() {
		power := []string{"--power", "ipmi", "--bmc", m.IPMI}
		if m.Firmware == api.FirmwareBIOS {
			power = []string{"--power", "redfish", "--bmc", m.RedfishURL}
		}
		args := append([]string{"node", "enroll", m.Name, "--mac", m.MAC, "--no-inspect", "--bmc-user", m.User, "--bmc-password-file", b.password}, power...)
		if _, err := b.o.ask(ctx, b.dir, args...); err != nil {
			return "", err
		}
	}
	found, err := b.o.digest(ctx, b.dir)
	return string(found), err
}

// digest is that of what the measured environment's name stands for.
func (o options) digest(ctx context.Context, dir string) (image.Digest, error) {
	out, err := o.ask(ctx, dir, "env", "list", "-o", "json")
	if err != nil {
		return "", err
	}
	var all []api.Environment
	if err := json.Unmarshal(out, &all); err != nil {
		return "", err
	}
	for _, e := range all {
		if e.Name == builtEnvironment && e.Image != nil {
			return image.Digest(e.Image.Digest), nil
		}
	}
	return "", fmt.Errorf("there is no %s among the environments: %s", builtEnvironment, out)
}

// run boots both machines once by one side. Emulated machines on a busy machine now and then miss a timer's beat, and their kernel panics
// over it before it has done anything; such a boot is done again.
func (b *bootBench) run(ctx context.Context, side string) error {
	for try := 1; ; try++ {
		err := b.once(ctx, side)
		if !errors.Is(err, errPanicked) || try == bootTries {
			return err
		}
		b.log.Warn("boot again", "side", side, "problem", err)
	}
}

// once is one try at a boot of both machines.
func (b *bootBench) once(ctx context.Context, side string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	var stop func() error
	if side == nearmetal {
		if stop, err = b.serve(ctx); err != nil {
			return err
		}
	} else {
		b.peer.quick = side == sideHand
		if stop, err = b.peer.start(ctx); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, stop()) }()
	machines := b.dc.Machines()
	var macs []string
	for _, m := range machines {
		macs = append(macs, m.MAC)
	}
	b.watch.begin(macs)
	locals := make(chan error, len(machines))
	for _, m := range machines {
		info, err := os.Stat(m.ConsoleLog)
		from := int64(0)
		if err == nil {
			from = info.Size()
		}
		go func() { locals <- b.watch.console(ctx, m.MAC, m.ConsoleLog, from) }()
	}
	ordered, err := b.order(ctx, side, machines)
	if err != nil {
		return err
	}
	for range machines {
		err := <-locals
		switch {
		case errors.Is(err, errPanicked):
			return errors.Join(err, b.off(ctx, side, machines))
		case err != nil:
			return errors.Join(err, errors.New(b.consoles()))
		}
	}
	for i, m := range machines {
		t := timedBoot{machine: m.Name, ordered: ordered[i], on: b.switchedOn(m.Name), seen: b.watch.seen(m.MAC)}
		if side == nearmetal {
			t.record, err = b.o.untilRecord(ctx, b.dir, m.Name, func(r api.MachineRecord) bool { return r.Phase == api.MachineReady })
			if err != nil {
				return err
			}
		}
		b.results[side] = append(b.results[side], t)
		if side == nearmetal {
			if err := b.tellRetries(ctx, m.Name, ordered[i]); err != nil {
				return err
			}
		}
		b.log.Info("boot", "side", side, "machine", m.Name, "on", t.since(t.on), "dhcp", t.since(t.seen.FirstDHCP), "loaded", t.since(t.seen.LastLoader), "call",
			t.since(t.seen.Call), "mounted", t.since(t.seen.Mounted), "local", t.since(t.seen.Local), "load", load())
	}
	return b.off(ctx, side, machines)
}

// tellRetries logs why a boot was begun again.
func (b *bootBench) tellRetries(ctx context.Context, name string, since time.Time) error {
	out, err := b.o.ask(ctx, b.dir, "node", "events", name, "-o", "json")
	if err != nil {
		return err
	}
	var events []api.Event
	if err := json.Unmarshal(out, &events); err != nil {
		return err
	}
	for _, e := range events {
		if e.Reason == lifecycle.EventMachineRetry && e.Time.After(since) {
			b.log.Warn("boot", "machine", name, "retried", e.Message)
		}
	}
	return nil
}

// serve starts the site.
func (b *bootBench) serve(ctx context.Context) (stop func() error, err error) {
	site, err := startDev(ctx, b.o, b.dir, "--provision", bootCable)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(bound(ctx, "udp", 67), wait(ctx, 5*time.Second)); err != nil { // it looks for other DHCP servers first
		return nil, errors.Join(err, site.stop())
	}
	return site.stop, nil
}

// names are those of the machines.
func (b *bootBench) names() (names []string) {
	for _, m := range b.dc.Machines() {
		names = append(names, m.Name)
	}
	return names
}

func (b *bootBench) switchedOn(name string) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.on[name]
}

// order wakes the machines, and returns when each was ordered.
func (b *bootBench) order(ctx context.Context, side string, machines []vdc.Machine) ([]time.Time, error) {
	ordered := make([]time.Time, len(machines))
	if side == nearmetal {
		now := time.Now()
		for i := range ordered {
			ordered[i] = now
		}
		_, err := b.o.ask(ctx, b.dir, append([]string{"node", "power", "on", "--env", builtEnvironment}, b.names()...)...)
		return ordered, err
	}
	errs := make(chan error, len(machines))
	for i, m := range machines {
		ordered[i] = time.Now()
		go func() {
			cmd := exec.CommandContext(ctx, "sh", "-ec", `curl -sSf -u "$1:$2" -X PATCH -H 'Content-Type: application/json' \
 -d '{"Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideTarget":"Pxe"}}' "$3/redfish/v1/Systems/$4"
curl -sSf -u "$1:$2" -X POST -H 'Content-Type: application/json' -d '{"ResetType":"On"}' "$3/redfish/v1/Systems/$4/Actions/ComputerSystem.Reset"`,
				"sh", m.User, m.Password, m.RedfishURL, m.UUID)
			if m.Firmware == api.FirmwareUEFI {
				host, port, err := net.SplitHostPort(m.IPMI)
				if err != nil {
					errs <- err
					return
				}
				cmd = exec.CommandContext(ctx, "sh", "-ec", `ipmitool -I lanplus -H "$1" -p "$2" -U "$3" -P "$4" chassis bootdev pxe
ipmitool -I lanplus -H "$1" -p "$2" -U "$3" -P "$4" chassis power on`, "sh", host, port, m.User, m.Password)
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("power on %s: %w: %s", m.Name, err, out)
			}
			errs <- err
		}()
	}
	var err error
	for range machines {
		err = errors.Join(err, <-errs)
	}
	return ordered, err
}

// off ends the machines.
func (b *bootBench) off(ctx context.Context, side string, machines []vdc.Machine) error {
	if side != nearmetal {
		var err error
		for _, m := range machines {
			err = errors.Join(err, b.dc.CutPower(m.Name))
		}
		return err
	}
	if _, err := b.o.ask(ctx, b.dir, append([]string{"node", "power", "off", "--force"}, b.names()...)...); err != nil {
		return err
	}
	for _, m := range machines {
		if _, err := b.o.untilRecord(ctx, b.dir, m.Name, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff }); err != nil {
			return err
		}
	}
	return nil
}

// consoles are the ends of what the machines printed.
func (b *bootBench) consoles() (text string) {
	for _, m := range b.dc.Machines() {
		text += fmt.Sprintf("console of %s:\n%s\n", m.Name, endOf(m.ConsoleLog))
	}
	return text
}

func (t timedBoot) since(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return at.Sub(t.ordered).Seconds()
}

// bootStages are what is compared, each from the order on.
func bootStages() []struct {
	name string
	at   func(timedBoot) time.Time
} {
	return []struct {
		name string
		at   func(timedBoot) time.Time
	}{
		{"power on", func(t timedBoot) time.Time { return t.on }},
		{"first DHCP packet", func(t timedBoot) time.Time { return t.seen.FirstDHCP }},
		{"kernel and initrd there", func(t timedBoot) time.Time { return t.seen.LastLoader }},
		{"boot agent calls", func(t timedBoot) time.Time { return t.seen.Call }},
		{"root mounted", func(t timedBoot) time.Time { return t.seen.Mounted }},
		{"node agent runs", func(t timedBoot) time.Time { return t.seen.AgentRuns }},
		{"root wholly local", func(t timedBoot) time.Time { return t.seen.Local }},
	}
}

// write tells the stages of all sides, and what of Nearmetal's boots is its own.
func (b *bootBench) write(text *bytes.Buffer, busy string) {
	for _, name := range []string{"b1", "u1"} {
		of := func(side string, value func(timedBoot) float64) []float64 {
			var all []float64
			for _, t := range b.results[side] {
				if t.machine == name {
					all = append(all, value(t))
				}
			}
			return all
		}
		fmt.Fprintf(text, "Boot of %s beside another machine, %d pairs, load %s to %s: seconds from the power order, median (lowest to highest); added: median of the pairs\n",
			name, b.o.pairs, busy, load())
		for _, stage := range bootStages() {
			value := func(t timedBoot) float64 { return t.since(stage.at(t)) }
			ours, theirs := of(nearmetal, value), of(sideHand, value)
			var added []float64
			for i := range ours {
				added = append(added, ours[i]-theirs[i])
			}
			fmt.Fprintf(text, "  %-24s nearmetal %s, by hand %s, added %s; by hand without RA and --no-ping %.1f\n", stage.name, spread(ours, 1), spread(theirs, 1),
				spread(added, 1), measure.Median(of(sidePlain, value)))
		}
		for _, side := range []string{nearmetal, sideHand, sidePlain} {
			fmt.Fprintf(text, "  %-14s answers: DHCP %s ms, script %s ms; Hello to welcome on the console %s s\n", side,
				spread(of(side, func(t timedBoot) float64 { return milliseconds(t.seen.Offers) }), 2),
				spread(of(side, func(t timedBoot) float64 { return milliseconds(t.seen.Scripts) }), 2),
				spread(of(side, func(t timedBoot) float64 { return t.seen.Welcome.Sub(t.seen.Call).Seconds() }), 2))
		}
		between := func(from, to func(timedBoot) time.Time) string {
			return spread(of(nearmetal, func(t timedBoot) float64 { return to(t).Sub(from(t)).Seconds() }), 2)
		}
		decided := func(t timedBoot) time.Time { return t.record.Record.Boot.DecidedAt }
		fmt.Fprintf(text, "  nearmetal's own: order to decision %s s, to power on confirmed %s s, local on the console to ready in the record %s s\n",
			between(func(t timedBoot) time.Time { return t.ordered }, decided), between(decided, func(t timedBoot) time.Time { return t.stage(api.StagePower) }),
			between(func(t timedBoot) time.Time { return t.seen.Local }, func(t timedBoot) time.Time { return t.stage(api.StageReady) }))
		read := func(value func(*api.Boot) int64) float64 {
			return measure.Median(of(nearmetal, func(t timedBoot) float64 { return float64(value(t.record.Record.Boot)) })) / (1 << 20)
		}
		fmt.Fprintf(text, "  %.1f MiB by TFTP and HTTP before the kernel ran, %.1f of %.1f MiB of the root read when the node agent ran (%s)\n\n",
			read(func(b *api.Boot) int64 { return b.LoaderBytes }), read(func(b *api.Boot) int64 { return b.ReadyBytes }),
			read(func(b *api.Boot) int64 { return b.RootBytes }), b.results[nearmetal][0].seen.AgentRead)
	}
}

// stage is when the site says that a stage of its boot ended.
func (t timedBoot) stage(name api.BootStage) time.Time {
	for _, s := range t.record.Record.Boot.Stages {
		if s.Stage == name {
			return s.At
		}
	}
	return time.Time{}
}

// milliseconds is the median of some durations.
func milliseconds(all []time.Duration) float64 {
	var values []float64
	for _, d := range all {
		values = append(values, float64(d)/float64(time.Millisecond))
	}
	return measure.Median(values)
}

// spread is a median with the lowest and the highest.
func spread(values []float64, digits int) string {
	return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, measure.Median(values), digits, measure.Quantile(values, 0), digits, measure.Quantile(values, 1))
}
