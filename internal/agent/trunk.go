package agent

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	fabricnode "github.com/nearmetal/nearmetal/internal/fabric/node"
	"github.com/nearmetal/nearmetal/internal/hostcheck"
)

// useTrunk lets the agent report the node's trunk, and the check of its host tell of it. Without a trunk nothing is reported.
func useTrunk(ctx context.Context, cfg *Config, node *api.NodeRecord, name string, read func(context.Context) (fabric.Underlay, error)) {
	if name == "" {
		return
	}
	node.Trunk = &api.Trunk{Interface: name}
	if err := fabricnode.CanTrunk(); err != nil {
		cfg.NoVLANs = err.Error()
		cfg.Log.WarnContext(ctx, "the node's trunk can't carry VLANs", "trunk", name, "error", err)
	}
	check := cfg.CheckHost
	cfg.CheckHost = func(ctx context.Context) ([]api.HostFinding, error) {
		all, err := check(ctx)
		if err != nil {
			return all, err
		}
		now, err := read(ctx)
		if err != nil {
			return all, err
		}
		return append(all, trunkFinding(name, cfg.NoVLANs, now.TrunkProblem, now.TrunkMTU)), nil
	}
}

// trunkFinding is what the check of a host says of its trunk.
func trunkFinding(name, noVLANs, problem string, mtu int) api.HostFinding {
	f := api.HostFinding{Area: string(hostcheck.Network), Name: "trunk " + name, Status: string(hostcheck.OK), Detail: fmt.Sprintf("carries VLANs, MTU %d", mtu)}
	if why := cmp.Or(noVLANs, problem); why != "" {
		f.Status, f.Detail = string(hostcheck.Warning), "networks on VLANs can't have members here: "+why
	}
	return f
}
