package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/gpu/passthrough"
	"github.com/nearmetal/nearmetal/internal/kerneltree"
)

// nodeGPUs are a node's GPUs for the drivers of its stacks.
type nodeGPUs interface {
	container.GPUs
	vm.GPUs
}

// openGPUs opens the node's GPUs, unless its operator keeps them; nil: members get none.
func openGPUs(ctx context.Context, cfg *Config, opts config.Agent, dir string, log *slog.Logger) (nodeGPUs, error) {
	var kinds []gpu.Kind
	for _, text := range opts.GPUKinds {
		kind, err := gpu.ParseKind(text)
		if err != nil {
			return nil, fmt.Errorf("--gpu-kind: %w", err)
		}
		kinds = append(kinds, kind)
	}
	remote := gpu.Remote{Programs: GPUPrograms(opts.GPUPrograms), GPUs: opts.RemoteGPUs.All, OpenCLBytes: int64(opts.RemoteGPUs.OpenCL)}
	machines, err := openPassthrough(ctx, opts, dir, log)
	if err != nil {
		return nil, err
	}
	if opts.GPUs.Of > 0 && opts.GPUs.N == 0 && remote.OpenCLBytes == 0 && remote.Programs == "" && len(machines.Away()) == 0 {
		return nil, nil //nolint:nilnil // it has none
	}
	node := gpu.New(gpu.Config{
		Part: opts.GPUs, Allow: opts.GPUAllow, Kinds: kinds, CDIDirs: opts.CDIDirs, Remote: remote, Passthrough: machines, PassthroughGPUs: opts.PassthroughGPUs, Log: log,
	})
	cfg.GPUs = node.Read
	if opts.RemoteGPUs.All {
		meter := gpu.NewMeter(node)
		go meter.Run(ctx)
		cfg.Loads = meter.Loads
	}
	return node, nil
}

// openPassthrough opens what gives GPUs to virtual machines, and takes back those that an earlier agent has given. Where several nodes are one machine,
// none of them gives any: each would count the others' GPUs anew while a machine has one.
func openPassthrough(ctx context.Context, opts config.Agent, dir string, log *slog.Logger) (*passthrough.Manager, error) {
	clearing := passthrough.Clearing(opts.PassthroughClearing)
	switch {
	case clearing != "" && clearing != passthrough.ClearingProven && clearing != passthrough.ClearingReset:
		return nil, fmt.Errorf("--passthrough-clearing %q is neither %s nor %s", clearing, passthrough.ClearingProven, passthrough.ClearingReset)
	case opts.GPUs.Of > 0 && len(opts.PassthroughGPUs) > 0:
		return nil, fmt.Errorf("--passthrough-gpus conflicts with --gpus %s: only a node that has all GPUs of its machine gives them to virtual machines", opts.GPUs)
	}
	m, err := passthrough.Open(passthrough.Config{Host: passthrough.Kernel{Tree: kerneltree.Tree{Root: "/"}}, Dir: filepath.Join(dir, "gpus"), Clearing: clearing, Log: log})
	if err != nil {
		return nil, err
	}
	if len(opts.PassthroughGPUs) > 0 {
		if out, err := exec.CommandContext(ctx, "modprobe", "vfio-pci").CombinedOutput(); err != nil {
			log.WarnContext(ctx, "the driver vfio-pci can't be loaded", "error", err, "said", string(out))
		}
	}
	go m.Retry(ctx)
	return m, nil
}

// GPUPrograms is the folder with the programs of remote GPUs: the operator's, that beside this program, or the system's. Empty: there is none.
func GPUPrograms(option string) string {
	if option != "" {
		return option
	}
	folders := []string{"/usr/lib/nearmetal/gpuremote"}
	if program, err := os.Executable(); err == nil {
		folders = slices.Insert(folders, 0, filepath.Join(filepath.Dir(program), "gpuremote"))
	}
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, gpu.ServerProgram)); err == nil {
			return folder
		}
	}
	return ""
}

// errGPUsChanged ends a stream whose greeting is no longer true.
var errGPUsChanged = errors.New("the node's GPUs changed, and are reported again")

// measureGPUs adds the node's GPUs to what it is about to report. A driver that hangs keeps the node's reading waiting, and not the node: what was found
// last is reported again then.
func (a *Agent) measureGPUs(agentCtx, ctx context.Context, node *api.NodeRecord) {
	if a.cfg.GPUs == nil {
		return
	}
	o := &a.opening
	if o.readingGPUs == nil {
		reading := make(chan gpu.Found, 1)
		o.readingGPUs = reading
		go func() { reading <- a.cfg.GPUs(agentCtx) }()
	}
	select {
	case o.gpus = <-o.readingGPUs:
		o.readingGPUs = nil
	case <-time.After(o.inspectPatience):
		a.cfg.Log.WarnContext(ctx, "the node's GPUs can't be read in time; reporting the earlier result", "patience", o.inspectPatience)
	case <-ctx.Done():
	}
	node.Capacity.Devices = slices.Concat(node.Capacity.Devices, o.gpus.Devices())
	node.GPUs, node.GPUProblems, node.GPUPrograms = o.gpus.GPUs, o.gpus.Problems, o.gpus.Programs
}

// watchGPUs returns when the node's GPUs are not as they were reported.
func (a *Agent) watchGPUs(ctx context.Context, reported gpu.Found) error {
	look := time.NewTicker(a.opening.underlayEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
		now := a.cfg.GPUs(ctx)
		if ctx.Err() == nil && !(reflect.DeepEqual(now.GPUs, reported.GPUs) && slices.Equal(now.Problems, reported.Problems) && now.Programs == reported.Programs) {
			a.cfg.Log.InfoContext(ctx, "the node's GPUs changed")
			return errGPUsChanged
		}
	}
}
