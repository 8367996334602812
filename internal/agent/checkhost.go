package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	fabricnode "github.com/nearmetal/nearmetal/internal/fabric/node"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/hostcheck"
)

// Host checks and prepares the machine that it runs on, without an agent or a server.
type Host struct{}

// noPrograms stands for the agents in machines: nothing is started in a check.
func noPrograms() ([]byte, error) { return nil, errors.New("a check starts no machine") }

// Check reports what this host lacks, by the drivers' own checks and what is seen besides. It changes nothing.
func (Host) Check(ctx context.Context) ([]hostcheck.Finding, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's file: %w", err)
	}
	networks, err := fabricnode.New(fabricnode.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = networks.Close() }()
	const name = "check"
	dir := config.StateDir + "/nodes/" + name // nothing is read or made there
	containers, err := container.New(container.Config{StateDir: dir, Node: name, Attacher: networks, Environments: environment.Catalog{}, MemberBinary: program})
	if err != nil {
		return nil, err
	}
	defer func() { _ = containers.Close() }()
	machines, err := vm.New(vm.Config{StateDir: dir, Node: name, Attacher: networks, Boot: noPrograms, Program: noPrograms, HomeServer: noPrograms})
	if err != nil {
		return nil, err
	}
	defer func() { _ = machines.Close() }()
	gpus := gpu.New(gpu.Config{}).Read(ctx)
	word := hostcheck.Word{
		GPUs: gpus.GPUs, GPUProblems: gpus.Problems,
		Groups:    reason(fabricnode.CanGuard(ctx)),
		Rates:     reason(fabricnode.CanShape()),
		WireGuard: reason(fabricnode.CanEncrypt()),
		Stacks:    []api.StackCheck{containers.Check(ctx), machines.Check(ctx)},
		Local:     environment.NewLocal().Inspect(ctx).Problems,
		Builder:   build.New(build.Config{}).Check(ctx),
	}
	return hostcheck.Check(hostcheck.Look(ctx, thisHost()), word), nil
}

func reason(why error) string {
	if why == nil {
		return ""
	}
	return why.Error()
}

// Plan returns what prepares this host.
func (Host) Plan(ctx context.Context, w hostcheck.Wanted) hostcheck.Prepared {
	return hostcheck.Plan(hostcheck.Look(ctx, thisHost()), w)
}

// Apply carries a plan out; show is called before each change.
func (Host) Apply(ctx context.Context, changes []hostcheck.Change, show func(hostcheck.Change)) error {
	host := thisHost()
	return hostcheck.Apply(ctx, host, hostcheck.Look(ctx, host), changes, show)
}

func thisHost() hostcheck.Host {
	return hostcheck.Host{Dir: "/", Run: func(ctx context.Context, program string, args ...string) (string, error) {
		said, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		return string(said), err
	}}
}
