package agent

import (
	"context"
	"net/netip"
	"path/filepath"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agent/layers"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/metal"
	"github.com/nearmetal/nearmetal/internal/fabric/whole"
	"github.com/nearmetal/nearmetal/internal/memberbin"
	"github.com/nearmetal/nearmetal/internal/volume/nfs"
)

// bootedLayers is where the boot agent has the layers of the image that it booted the machine from.
const bootedLayers = "/run/nearmetal/layers"

// bootedChanges is where the boot agent has what changes in the machine's root: the upper directory of its overlay.
const bootedChanges = "/run/nearmetal/upper/upper"

// runAsMember runs the agent of a machine that is a member: it carries that member and offers nothing. The server takes its word for that member only.
func runAsMember(ctx context.Context, cfg Config, opts config.Agent, underlay netip.Addr, members memberbin.Files, known *Credentials) error {
	networks := whole.New(opts.MemberMAC)
	cfg.Fabric = networks
	node, err := describe(opts, underlay, "")
	if err != nil {
		return err
	}
	opts.Builder, opts.PeerListen = config.BuilderOff, config.PeerListenOff
	images, endPeers, err := openImages(ctx, &cfg, opts, underlay, node, known.Client())
	if err != nil {
		return err
	}
	defer endPeers()
	cfg.Layers = layers.New(filepath.Join(cfg.StateDir, "layers"), images, cfg.Log)
	cfg.Sharer = nfs.NewMachine(filepath.Join(cfg.StateDir, "volumes"))
	cfg.Faults = thisMachinesFaults
	cfg.Node, cfg.HomeDir = node, filepath.Join(opts.StateDir, "home")
	cfg.Inspect = func(context.Context) []api.EnvironmentOnNode { return nil }
	cfg.Drivers = []driver.Driver{metal.New(metal.Config{StateDir: cfg.StateDir, Attacher: networks, Program: members.Binary, Layers: bootedLayers, Changes: bootedChanges, Root: "/"})}
	return Run(ctx, cfg)
}
