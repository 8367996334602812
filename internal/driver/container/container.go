// Package container carries members as OCI containers with crun (or runc): user namespace, exclusive cpusets, no host file but
// what the member's environment lists.
//
// It must never remember: Observe, Wait, Stop and Clean look at the host (the member directories, the runtime's directory and
// the control groups), so they are right after any crash. It decides nothing and never touches what doesn't bear its names.
// Start with Driver.Start in start.go; spec.go is the container as the runtime sees it.
package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/patience"
)

// MemberPath is where a member finds its first process, the member agent's binary. It is not in /run/nearmetal: a mount point
// there would have to be made in the agent's control directory.
const MemberPath = "/run/nearmetal-member"

// Config is what a Driver is made of.
type Config struct {
	// StateDir is the node agent's own directory (DIR/nodes/NODE); members/ below it is this driver's, while there are any.
	StateDir string
	// Node names the node; its control groups are /nearmetal/NODE-HASH/ID, HASH being of the state directory's path.
	Node string
	// Attacher connects members to their networks.
	Attacher fabric.Attacher
	// GPUs says what members need to use the node's GPUs; nil: the node hands out none.
	GPUs GPUs
	// ServerCPUs and ServerMemory are the CPUs and the memory nodes of servers of remote GPUs; empty: the node runs none.
	ServerCPUs, ServerMemory []int
	// Environments are what members' roots can be made of.
	Environments environment.Catalog
	// Images are the built environments on this node; nil: it carries none.
	Images environment.Images
	// MemberBinary is the host path of the static binary that is every member's first process, mounted at MemberPath.
	MemberBinary string
	// RankLibrary is the host path of the library that Open MPI's ranks are started with, mounted at memberconfig.RankLibrary in members that
	// share memory; empty: it is not mounted.
	RankLibrary string
	// MemberArgs are the first process's arguments, by default MemberPath alone. Tests run another program by them.
	MemberArgs []string
	// Runtime is the OCI runtime's path; by default crun, else runc, from PATH.
	Runtime string
	Logger  *slog.Logger
}

// Driver carries members as containers. It implements driver.Driver.
type Driver struct {
	cfg     Config
	log     *slog.Logger
	members string // one directory a member

	mu       sync.Mutex
	opened   *host // nil before first use
	closed   bool
	starting int // members between beginStart and its done
	children map[string]*child
	images   images
	detours  map[string]*detour // by member
	// sandboxes is held while a sandbox is looked for, made or ended.
	sandboxes sync.Mutex
	// questions are those about volumes, which may not answer.
	questions patience.Questions

	lifetime context.Context // until Close
	end      context.CancelFunc
}

// New makes a driver; it looks at nothing on the host and changes nothing there until it is used (see Check).
func New(cfg Config) (*Driver, error) {
	switch {
	case !filepath.IsAbs(cfg.StateDir):
		return nil, fmt.Errorf("container driver: the state directory must be an absolute path, not %q", cfg.StateDir)
	case !validName(cfg.Node):
		return nil, fmt.Errorf("container driver: %q is not a valid node name; use letters, digits, '.', '_' and '-'", cfg.Node)
	case cfg.Attacher == nil:
		return nil, errors.New("container driver: the Attacher, which connects members, is missing")
	case !filepath.IsAbs(cfg.MemberBinary):
		return nil, fmt.Errorf("container driver: the member binary must be an absolute path, not %q", cfg.MemberBinary)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if len(cfg.MemberArgs) == 0 {
		cfg.MemberArgs = []string{MemberPath}
	}
	d := &Driver{
		cfg:      cfg,
		log:      cfg.Logger.With("driver", "container", "node", cfg.Node),
		members:  filepath.Join(cfg.StateDir, "members"),
		children: map[string]*child{},
		detours:  map[string]*detour{},
		images:   images{mounted: map[imageKey]string{}, layers: map[string][]layerMount{}, users: map[string]imageKey{}},
	}
	d.lifetime, d.end = context.WithCancel(context.Background())
	return d, nil
}

// Stack is the container stack.
func (d *Driver) Stack() api.Stack { return api.StackContainer }

// group is the control group of this node's containers.
func (c Config) group() string { return cgroup.NodeGroup(c.Node, c.StateDir) }

// validName tells whether a name is safe as a directory, control group and container name.
func validName(name string) bool {
	if name == "" || len(name) > 200 || name[0] == '.' || name[0] == '-' {
		return false
	}
	for _, r := range name {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
		if !ok {
			return false
		}
	}
	return true
}
