// Package dev is a whole site on one machine: a server in this process and node agents in processes of their own, each in the
// namespaces of a stand-in machine.
//
// The agents are ordinary ones, separately killable, and outlive this process: started again, it finds the agents and the
// namespaces that are still there. It must never do for members what an agent should. Start with Run.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/inventory"
	"github.com/nearmetal/nearmetal/internal/nodespace"
	"github.com/nearmetal/nearmetal/internal/server"
)

// Run runs a site until ctx ends. ready is called once the API answers, with its address; it
// may be nil.
func Run(ctx context.Context, opts config.Dev, log *slog.Logger, ready func(address string)) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("nearmetal dev needs root to make namespaces, networks and control groups; run it with sudo")
	}
	stateDir, err := filepath.Abs(opts.StateDir)
	if err != nil {
		return err
	}
	opts.StateDir = stateDir
	names := make([]string, opts.Nodes)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i+1)
	}
	if err := os.MkdirAll(stateDir, 0o711); err != nil {
		return fmt.Errorf("the state directory can't be made: %w; choose another one with --state", err)
	}
	shares, err := divide(opts.StateDir, opts.Nodes, opts.NodeCores)
	if err != nil {
		return err
	}
	for i := range shares {
		shares[i].remoteGPUs = i < max(opts.RemoteGPUNodes, 1)
	}
	if err := keepLayout(stateDir, layout{Nodes: opts.Nodes, Slots: shares[0].slots}); err != nil {
		return err
	}
	tree, err := energyTree(opts)
	if err != nil {
		return err
	}
	nodes := nodespace.Config{StateDir: stateDir, Nodes: names, Egress: true, Logger: log}
	spaces, err := nodespace.Ensure(ctx, nodes)
	if err != nil {
		return fmt.Errorf("make the namespaces of the nodes: %w", err)
	}
	_, port, err := net.SplitHostPort(opts.Listen)
	if err != nil {
		return fmt.Errorf("listen address %q: %w; write HOST:PORT", opts.Listen, err)
	}
	inner := net.JoinHostPort(spaces.Host.String(), port)
	simulated := 0
	if opts.InfiniBand {
		simulated = opts.Nodes
	}
	site, err := server.Open(server.Config{
		SimulatedNodes: simulated,
		Server:         config.Server{Streams: opts.Streams, Log: opts.Log, StateDir: stateDir, Listen: opts.Listen, NetworkPool: opts.NetworkPool, VLANPool: opts.VLANPool, EthernetFiles: opts.EthernetFiles, NetworkPool6: opts.NetworkPool6, Floating: floatingOf(opts, spaces), EgressOpen: opts.EgressOpen, EncryptUnderlay: opts.EncryptUnderlay, UserHomes: opts.UserHomes, StartDeadline: opts.StartDeadline, Provision: opts.Provision, Logs: opts.Logs}, Also: []string{inner}, Log: log,
	})
	if errors.Is(err, server.ErrStateInUse) {
		return err // the namespaces are that server's
	}
	if err != nil {
		return errors.Join(err, leave(context.WithoutCancel(ctx), opts, names, log))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var agents sync.WaitGroup
	agents.Go(func() {
		if err := nodespace.KeepEgress(ctx, nodes, spaces, lookAround); err != nil {
			log.WarnContext(ctx, "the nodes' egress is no longer maintained; other programs' firewall rules may block it", "error", err)
		}
	})
	opts.RAPLTree = tree.dir
	agents.Go(func() { tree.run(ctx, log) })
	err = site.Run(ctx, func() {
		for i, space := range spaces.Nodes {
			agents.Go(func() { trust(ctx, stateDir, space.Name, log) })
			agents.Go(func() {
				keepAgent(ctx, agentProcess{opts: opts, space: space, server: site.Addresses()[1], share: shares[i], fabricPort: site.SimulatedPort(i), log: log.With("node", space.Name)})
			})
		}
		if ready != nil {
			ready(site.Addresses()[0])
		}
	})
	cancel()
	agents.Wait()
	return errors.Join(err, leave(context.WithoutCancel(ctx), opts, names, log))
}

// floatingOf returns where floating addresses come from: by default the part of the nodes' network that no node is in, so that the host reaches them.
func floatingOf(opts config.Dev, spaces nodespace.Spaces) config.Floating {
	f := opts.Floating
	if len(f.Pools) == 0 {
		f.Pools = []string{spaces.Floating.String()}
	}
	return f
}

// lookAround is how often it is looked who else forwards packets on this machine: Docker, another site, a firewall.
const lookAround = 3 * time.Second

// leave removes the namespaces of the nodes unless members still run in them: clusters outlive dev, and the next one finds them.
func leave(ctx context.Context, opts config.Dev, names []string, log *slog.Logger) error {
	for _, name := range names {
		for _, kind := range []string{"members", "vms"} { // of the container driver and of the VM driver
			members, err := os.ReadDir(filepath.Join(opts.StateDir, "nodes", name, kind))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if len(members) > 0 {
				log.WarnContext(ctx, "members keep running; start dev again with the same state directory to manage them",
					"node", name, "members", len(members), "state", opts.StateDir)
				return nil
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return removeSpaces(ctx, opts.StateDir)
}

// removeSpaces removes the namespaces of the nodes, once the processes that the agents had under way (a host check, an OCI
// runtime) have followed them: they are killed with the agent, but end a moment later.
func removeSpaces(ctx context.Context, stateDir string) error {
	patience, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		err := nodespace.Remove(ctx, stateDir)
		if !errors.Is(err, nodespace.ErrInUse) {
			return err
		}
		select {
		case <-patience.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// share is what one node gets of the machine.
type share struct {
	cpus        []int
	slots       int
	shared      bool
	memoryBytes int64
	diskBytes   int64
	hugePages   inventory.Part
	// remoteGPUs: the node's servers hand out GPUs.
	remoteGPUs bool
}

// divide gives each node cores of its own as far as the machine has them, else all nodes the same ones.
func divide(dir string, nodes, coresEach int) ([]share, error) {
	usable, err := inventory.UsableCPUs()
	if err != nil {
		return nil, err
	}
	whole, err := inventory.Discover("/", usable, inventory.Request{})
	if err != nil {
		return nil, err
	}
	disk, err := inventory.DiskBytes(dir, filepath.Join("nodes", "*", inventory.MemberDisks))
	if err != nil {
		return nil, err
	}
	if coresEach == 0 {
		coresEach = max(1, len(usable)/nodes)
	}
	shares := make([]share, nodes)
	for i := range shares {
		s := share{slots: coresEach, memoryBytes: whole.MemoryBytes / int64(nodes), diskBytes: disk / int64(nodes), hugePages: inventory.Part{N: i + 1, Of: nodes}}
		if nodes*coresEach <= len(usable) {
			s.cpus = usable[i*coresEach : (i+1)*coresEach]
		} else {
			s.cpus, s.shared = usable, true
			if nodes == 1 {
				s.shared = false // more slots than CPUs tell it themselves
			}
		}
		shares[i] = s
	}
	return shares, nil
}

// agentProcess is an agent to be kept running.
type agentProcess struct {
	opts   config.Dev
	space  nodespace.Space
	server string
	share  share
	// fabricPort is where the node's port is on the simulated fabric, CELL/GUID; empty: it has none.
	fabricPort string
	log        *slog.Logger
}

// restartPause is how long an agent that ended stays away: whoever killed it may want to look.
const restartPause = time.Second

// keepAgent keeps a node's agent running until ctx ends: one that an earlier dev left is waited for, one that ends is started
// again.
func keepAgent(ctx context.Context, p agentProcess) {
	for ctx.Err() == nil {
		if err := p.run(ctx); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "the node's agent ended; restarting it", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(restartPause):
		}
	}
}

// run starts the agent and waits for its end, or ends it with ctx.
func (p agentProcess) run(ctx context.Context) error {
	if err := os.MkdirAll(p.dir(), 0o711); err != nil {
		return err
	}
	if err := p.endFormer(ctx); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := p.dir()
	out, err := os.OpenFile(filepath.Join(dir, "agent.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	args := []string{
		"agent", "--state", p.opts.StateDir, "--server", p.server, "--name", p.space.Name,
		"--cores", fmt.Sprint(p.share.slots), "--cpus", inventory.FormatList(p.share.cpus),
		"--memory", fmt.Sprint(p.share.memoryBytes), "--huge-pages", p.share.hugePages.String(), "--underlay", p.space.Address.String(),
	}
	args = append(args, "--gpus", p.share.hugePages.String()) // GPUs are divided as huge pages are
	if p.share.remoteGPUs {
		args = append(args, "--remote-gpus", p.opts.RemoteGPUs.String())
	}
	if p.opts.GPUPrograms != "" {
		args = append(args, "--gpu-programs", p.opts.GPUPrograms)
	}
	for _, dir := range p.opts.CDIDirs {
		args = append(args, "--cdi-dir", dir)
	}
	if p.share.diskBytes > 0 {
		args = append(args, "--disk", fmt.Sprint(p.share.diskBytes))
	}
	args = append(args, "--volume-pool-sparse") // what is tried out should not take a tenth of the disk
	if p.opts.VolumePool != "" {
		args = append(args, "--volume-pool-size", p.opts.VolumePool)
	}
	args = append(args, "--conditions")
	if p.opts.RAPLTree != "" {
		args = append(args, "--rapl-tree", p.opts.RAPLTree)
	}
	if p.share.shared {
		args = append(args, "--shared-cpus")
	}
	if p.fabricPort != "" {
		args = append(args, "--fabric-port", "ib0="+p.fabricPort, "--simulated-adapter", p.fabricPort)
	}
	if p.opts.BuildSources != "" {
		args = append(args, "--build-sources", p.opts.BuildSources)
	}
	if p.opts.Log.Level != "" {
		args = append(args, "--log-level", p.opts.Log.Level)
	}
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := nodespace.Start(p.space, cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return fmt.Errorf("%w; its log ends with: %s", err, tail(out.Name()))
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return <-ended
	}
}

func (p agentProcess) dir() string { return filepath.Join(p.opts.StateDir, "nodes", p.space.Name) }

// endFormer ends the agent that a killed dev left running: it may be of another version, and this one could not wait for it.
func (p agentProcess) endFormer(ctx context.Context) error {
	lock, err := os.OpenFile(filepath.Join(p.dir(), "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return lock.Truncate(0) // an ended agent's number may be another process's by now
	}
	// Its holder writes who it is: so that is known whenever this process's forerunner died, also just after it had started it.
	var pid int
	if _, err := fmt.Fscan(lock, &pid); err != nil || pid <= 1 {
		return fmt.Errorf("an agent of node %s already runs, but %s does not contain its process ID (yet); end that agent", p.space.Name, lock.Name())
	}
	p.log.InfoContext(ctx, "ending the agent of an earlier run", "pid", pid)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end the earlier agent: %w", err)
	}
	return waitLock(ctx, lock)
}

// waitLock waits until the lock can be had, for ten seconds.
func waitLock(ctx context.Context, lock *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the earlier agent did not end")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail is the end of a log, for an error message.
func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	const most = 600
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return string(text)
}

// reach tells how the other commands find a site that is not where they look.
func reach(stateDir string) string {
	dir, err := filepath.Abs(stateDir)
	if err != nil || dir == config.StateDir {
		return ""
	}
	return "; in another terminal, as the same user: NEARMETAL_STATE=" + dir + " nearmetal node list"
}

// Main runs `nearmetal dev` until ctx ends.
func Main(ctx context.Context, opts config.Dev, log *slog.Logger) error {
	return Run(ctx, opts, log, func(address string) {
		_, _ = fmt.Fprintf(opts.Streams.Err, "nearmetal dev: %d node(s), listening on %s, state in %s%s\n", opts.Nodes, address, opts.StateDir, reach(opts.StateDir))
	})
}
