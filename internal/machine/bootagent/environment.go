package bootagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/bootctl"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/machine/inspection"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Where the node agent lives.
const (
	agentDir   = "/run/nearmetal/agent"
	agentState = "/var/lib/nearmetal"
)

// environment gives the machine its root, runs what belongs on it, and stays until the root can't be had.
func (a *Agent) environment(ctx context.Context, stopDrivers func()) error {
	manifest, err := a.manifest()
	if err != nil {
		return err
	}
	if err := a.enterRoot(ctx, manifest, stopDrivers); err != nil {
		return err
	}
	status := a.root.status(ctx)
	a.reports.stage(boot.StageReport{Stage: api.StageRoot, ReadBytes: status.ReadBytes, RootBytes: status.RootBytes})
	a.log.Info("root mounted", "read_bytes", status.ReadBytes, "of", status.RootBytes, "after", time.Since(a.begun))
	if err := a.settleIn(); err != nil {
		return err
	}
	go a.network.renew(ctx, func(err error) { a.log.Warn("the address can't be renewed; keeping it", "error", err) })
	failed := a.root.failed()
	isMember := a.welcome.Purpose == api.BootMember
	if !isMember {
		a.loadVirtualization()
	}
	if err := a.startAgent(ctx); err != nil {
		return err
	}
	a.startConsoles()
	if !isMember { // the member agent listens there
		a.startSSH()
	}
	sharing, stopSharing := context.WithCancel(ctx)
	defer stopSharing()
	go a.share(sharing)
	filled := make(chan error, 1)
	go func() { filled <- a.root.fill(ctx) }()
	for {
		select {
		case err := <-failed:
			return err
		case err := <-filled:
			stopSharing()
			if err != nil {
				return err
			}
			status := a.root.status(ctx)
			a.log.Info("the root is entirely local", "read_bytes", status.ReadBytes, "of", status.RootBytes, "from_peers", status.PeerBytes,
				"after", time.Since(a.begun))
			a.reports.stage(readyReport(status))
			// Drivers of what the initial RAM disk does not know, from the root itself, now that reading it costs nothing.
			a.loadDrivers(ctx, atOnce)
			if isMember {
				go a.watchMachine(ctx, watchdogDevice)
			}
			go a.checkHealth(ctx)
			filled = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readyReport tells that the root is entirely local.
func readyReport(s bootctl.Status) boot.StageReport {
	return boot.StageReport{Stage: api.StageReady, ReadBytes: s.ReadBytes, RootBytes: s.RootBytes, PeerBytes: s.PeerBytes, Local: true}
}

// enterRoot mounts the image and makes it the root.
func (a *Agent) enterRoot(ctx context.Context, manifest *image.Manifest, stopDrivers func()) error {
	if err := a.modules.loadAll(modulesForRoot(manifest.Roots()...)); err != nil {
		return err
	}
	disk := a.args.Disk
	var peers []string
	for _, url := range a.welcome.Peers {
		peers = append(peers, strings.TrimSuffix(url, "/")+"/")
	}
	r, dirs, err := attachRoot(ctx, rootConfig{
		manifest: manifest, server: a.args.Images, peers: peers, rate: a.welcome.RateBytesPerSecond, disk: disk, client: a.images, init: a.init,
	}, a.log)
	if err != nil {
		return err
	}
	a.root = r
	if err := os.WriteFile(filepath.Join(imageDir, "manifest.json"), a.welcome.Manifest, 0o644); err != nil {
		return err
	}
	if err := overlay(dirs, a.fillRoot(ctx, backoff)); err != nil {
		return err
	}
	stopDrivers()
	if err := switchRoot(); err != nil {
		return err
	}
	return prepareForPrograms()
}

// settleIn writes what is generated and begins to obey requests about the power.
func (a *Agent) settleIn() error {
	if err := writeFiles("/", a.welcome, a.network); err != nil {
		return fmt.Errorf("write the machine's own files: %w", err)
	}
	a.obeySignals()
	a.obeyPowerButton()
	return a.listen()
}

// haste is how urgent drivers are.
type haste bool

const (
	atOnce      haste = true
	inSpareTime haste = false
)

// loadDrivers loads the drivers of the image for the devices that have none yet, and then modules by name.
func (a *Agent) loadDrivers(ctx context.Context, h haste, names ...string) {
	m, err := openModules(a.log)
	if err != nil {
		a.log.Warn("the image has no modules for this kernel; only the drivers of the initial RAM disk are available", "error", err)
		return
	}
	if path := program("/sbin/modprobe", "/usr/sbin/modprobe"); path != "" {
		m.modprobe = func(alias string) error {
			// Quiet: most that it has to say is that a driver found nothing to drive.
			_, err := a.init.command(process{name: "modprobe", args: []string{path, "-b", "-q", "--", alias}, spare: h == inSpareTime})
			return err
		}
	}
	noHeadStart := make(chan struct{})
	close(noHeadStart)
	if err := m.watchDevices(ctx, make(chan struct{}, 1), noHeadStart); err != nil {
		a.log.Warn("new devices won't be detected", "error", err)
		return
	}
	_ = m.settle(ctx)
	for _, name := range names {
		m.pending.Add(1)
		m.drive(name)
	}
}

// checkHealth reports the health checks of this boot.
func (a *Agent) checkHealth(ctx context.Context) {
	report := boot.Report{Health: inspection.Health(ctx, a.healthDeadline())}
	for try := 0; ; try++ {
		var next boot.Instruction
		err := a.calls.post(ctx, boot.ReportPath, report, &next)
		if err == nil {
			a.obey(next)
			return
		}
		a.log.Warn("the health checks can't be reported", "error", err)
		if isFinal(err) || backoff(ctx, min(try, 4)) != nil {
			return
		}
	}
}

// startAgent fetches the node agent and keeps it running; nothing for a boot without one.
func (a *Agent) startAgent(ctx context.Context) error {
	agent := a.welcome.Agent
	if agent == nil {
		a.log.Info("this boot has no node agent")
		return nil
	}
	binary := filepath.Join(agentDir, "nearmetal")
	if err := os.MkdirAll(agentDir, 0o700); err != nil {
		return err
	}
	if err := a.fetchAgent(ctx, binary, agent); err != nil {
		return fmt.Errorf("the node agent: %w", err)
	}
	node := filepath.Join(agentState, "nodes", a.welcome.Name)
	identity := a.identity.Certified(a.welcome.Name, agent.Certificate)
	if err := errors.Join(os.MkdirAll(node, 0o711), identity.WriteVolatile(filepath.Join(node, trust.IdentityName))); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(agentDir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	first := true
	go a.init.keep(process{
		name: "the node agent", args: agentArguments(binary, a.welcome, a.network, offeredMemory(a.root), a.root.onDisk, a.args.MAC, a.trunk(ctx, agent.TrunkMAC)), files: []*os.File{nil, log, log},
		env: []string{"NEARMETAL_BOOT_SOCKET=" + bootctl.Socket},
	}, false, func(pid int) {
		a.init.setAgent(pid)
		if first {
			first = false
			status := a.root.status(ctx)
			a.log.Info("node agent started", "read_bytes", status.ReadBytes, "of", status.RootBytes, "after", time.Since(a.begun))
			a.reports.stage(boot.StageReport{Stage: api.StageAgent, ReadBytes: status.ReadBytes, RootBytes: status.RootBytes})
		}
	})
	return nil
}

// offeredMemory is what the node agent may give to members: all but a tenth, as it offers by itself, less what the root takes of it.
func offeredMemory(r *root) int64 {
	total, err := memory("MemTotal")
	if err != nil {
		return 0
	}
	total -= total / 10
	if !r.onDisk {
		for _, v := range r.volumes {
			total -= v.root.SizeBytes
		}
	}
	return total
}

// trunkPatience is how long the agent waits for the driver and the carrier of the trunk.
const trunkPatience = 15 * time.Second

// trunk switches the NIC on that carries VLANs, and returns its name. If no NIC has the address, the agent gets that in the name's place, and reports
// that there is no such link.
func (a *Agent) trunk(ctx context.Context, mac string) string {
	if mac == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, trunkPatience)
	defer cancel()
	nic, err := findNIC(ctx, mac, guestlink.Interface{MAC: mac}.IsOf, nil)
	if err != nil {
		a.log.Warn("no NIC has the address of the trunk", "mac", mac, "error", err)
		return mac
	}
	if err := linkUp(ctx, nic.Name); err != nil {
		a.log.Warn("the trunk is not up", "error", err)
	}
	return nic.Name
}

// agentArguments is the node agent's command line; memoryBytes 0 leaves it to the agent how much it offers.
func agentArguments(binary string, w boot.Welcome, n *network, memoryBytes int64, onDisk bool, bootMAC, trunk string) []string {
	args := []string{
		binary, "agent", "--server", w.Agent.Server, "--name", w.Name, "--state", agentState,
		"--underlay", n.Address.Addr().String(), "--boot-generation", strconv.FormatInt(w.Agent.Generation, 10),
	}
	if memoryBytes > 0 {
		args = append(args, "--memory", strconv.FormatInt(memoryBytes>>20, 10)+"MiB")
	}
	if !onDisk {
		args = append(args, "--in-ram")
	}
	if trunk != "" {
		args = append(args, "--trunk-interface", trunk)
	}
	if w.Purpose == api.BootMember {
		return append(args, "--as-member", bootMAC)
	}
	for _, adapter := range w.Agent.Adapters {
		args = append(args, "--fabric", adapter.Cell+"="+adapter.PCI)
		if adapter.VirtualFunctions > 0 {
			args = append(args, "--virtual-functions", adapter.PCI+"="+strconv.Itoa(adapter.VirtualFunctions))
		}
	}
	if p := w.Agent.Passthrough; p != nil {
		for _, what := range p.GPUs {
			args = append(args, "--passthrough-gpus", what)
		}
		if p.Clearing != "" {
			args = append(args, "--passthrough-clearing", p.Clearing)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.Agent.Labels)) {
		args = append(args, "--label", key+"="+w.Agent.Labels[key])
	}
	return args
}

// hosts is /etc/hosts.
func hosts(name string, address net.IP) string {
	text := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
	if name != "" {
		text += address.String() + " " + name + "\n"
	}
	return text
}
