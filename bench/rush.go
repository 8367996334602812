package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// A rush: so many whole machines are powered on at once, over an uplink so slow that it is the bound and not the processors that emulate them.
const (
	rushMachines = 6
	rushBits     = 25_000_000
	rushLimit    = 15 * time.Minute
)

// rush measures how long whole machines take that boot at once over a slow uplink. What they give each other does not cross it.
func rush(ctx context.Context, o options, dir string, log *slog.Logger, text *bytes.Buffer) (err error) {
	count := machinesFor(totalBytes())
	if count < rushMachines {
		why := fmt.Sprintf("%d of %d machines of the rush omitted: this machine has %s of memory", rushMachines-count, rushMachines, totalMemory())
		log.Warn(why)
		fmt.Fprintf(text, "%s.\n\n", why)
	}
	if count == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rushLimit)
	defer cancel()
	b := &bootBench{o: o, dir: dir, log: log, password: dir + ".password", on: map[string]time.Time{}}
	config := vdc.Config{
		Name: "bn", ProvisioningLink: bootCable, BMCLink: "bnbmc", BMCNetwork: netip.MustParsePrefix("10.98.60.0/24"), Log: b.hears,
	}
	for i := range count {
		config.Machines = append(config.Machines, vdc.MachineConfig{Name: fmt.Sprintf("b%d", i+1), Firmware: api.FirmwareBIOS, MemoryMiB: 1536})
	}
	if b.dc, err = vdc.Start(ctx, config); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.dc.Close()) }()
	if err := errors.Join(b.plug(), os.WriteFile(b.password, []byte(b.dc.Machines()[0].Password), 0o600)); err != nil {
		return err
	}
	if _, err := b.enroll(ctx); err != nil {
		return err
	}
	if err := shape(ctx, bootCable, rushBits); err != nil {
		return err
	}
	stop, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	busy := load()
	before, err := sentBytes(bootCable)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := o.ask(ctx, dir, append([]string{"node", "power", "on", "--env", builtEnvironment}, b.names()...)...); err != nil {
		return err
	}
	var loaders, roots, peers, server int64
	var first time.Time
	var seconds []float64
	for _, m := range b.dc.Machines() {
		found, err := o.untilRecord(ctx, dir, m.Name, func(r api.MachineRecord) bool { return r.Phase == api.MachineReady })
		if err != nil {
			return errors.Join(err, errors.New(b.consoles()))
		}
		t := timedBoot{record: found, ordered: began}
		if asked := t.stage(api.StageFirmware); first.IsZero() || asked.Before(first) {
			first = asked
		}
		seconds = append(seconds, t.since(t.stage(api.StageReady)))
		loaders += found.Record.Boot.LoaderBytes
		roots += found.Record.Boot.RootBytes
		peers += found.Record.Boot.PeerBytes
	}
	after, err := sentBytes(bootCable)
	if err != nil {
		return err
	}
	server = after - before
	bound := float64(server) * 8 / rushBits
	all := measure.Quantile(seconds, 1) - first.Sub(began).Seconds()
	log.Info("rush", "ready", seconds, "first", first.Sub(began).Seconds(), "sent", server, "from_peers", peers, "bound", bound, "over_bound", all/bound, "load", load())
	fmt.Fprintf(text, `Rush: %d whole machines are powered on at once over %d Mbit/s, load %s to %s
  all ready %.1f s after the first one asked for an address (first one %.1f s); the server sent %.0f MiB, for which the link needs %.1f s: %.2f of the bound
  they fetched %.0f MiB of loaders, kernels and initrds and %.0f MiB of roots, %.0f MiB of those from each other

`, count, rushBits/1_000_000, busy, load(), all, measure.Quantile(seconds, 0)-first.Sub(began).Seconds(), float64(server)/(1<<20), bound, all/bound,
		float64(loaders)/(1<<20), float64(roots)/(1<<20), float64(peers)/(1<<20))
	return b.off(ctx, nearmetal, b.dc.Machines())
}

// sentBytes is what has gone out on a link, with its frames' headers.
func sentBytes(name string) (int64, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	if link.Attrs().Statistics == nil {
		return 0, fmt.Errorf("the kernel counts nothing on %s", name)
	}
	return int64(link.Attrs().Statistics.TxBytes), nil
}
