// Package nodespace makes the namespaces that stand in for machines when one computer plays several nodes (nearmetal dev).
//
// Each node has a network, a mount and a UTS namespace, pinned by bind mounts below STATE/spaces/NODE, so that they outlive every
// process: an agent that is killed and started again finds the same network, the same mounts and the same host name. The
// nodes are joined by an underlay, a bridge in a network namespace of its own; the host has one end of one veth pair in it and is
// otherwise left alone, unless egress is asked for. It must never know about clusters, members or agents: it makes
// machines out of nothing and starts processes in them. Start reading at Ensure.
package nodespace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Config says which node spaces there should be.
type Config struct {
	// StateDir is the state directory; everything made on disk stays below it.
	StateDir string
	// Nodes are the names of the nodes, DNS labels; a node keeps its address as long as its space exists.
	Nodes []string
	// Egress gives the nodes a way out through the host: a default route to the host's end of the underlay, forwarding and
	// masquerading there. Without it nothing but the host's underlay address can be reached from a node.
	Egress bool
	// Logger may be nil.
	Logger *slog.Logger
}

// Spaces are the node spaces of one state directory.
type Spaces struct {
	// Underlay is the subnet that joins host and nodes.
	Underlay netip.Prefix
	// Host is the host's address in Underlay: a server listens here for agents.
	Host netip.Addr
	// Floating is the part of Underlay in which no node is: floating addresses come from there.
	Floating netip.Prefix
	// MTU of the underlay in bytes.
	MTU int
	// Nodes are in the order of Config.Nodes.
	Nodes []Space
}

// Space is where the processes of one node run.
type Space struct {
	// Name is the node's name, and the host name inside.
	Name string
	// Address is the node's address in the underlay: the VXLAN tunnel end point.
	Address netip.Addr
	// NetNS, MountNS and UTSNS are paths that open the namespaces: nsenter --net=NETNS --mount=MOUNTNS --uts=UTSNS.
	NetNS   string
	MountNS string
	UTSNS   string
}

// nodeName is a DNS label (RFC 1123), which no other name below the spaces directory is.
var nodeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })

// site is one state directory's spaces: where they are pinned, and what its objects on the host are called.
type site struct {
	dir  string // STATE/spaces, a tmpfs of its own
	id   string // 8 hexadecimal digits from the state directory's path
	host netns.Handle
	log  *slog.Logger
}

// open finds the names that belong to a state directory, and the host's network namespace.
func open(stateDir string, log *slog.Logger) (*site, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("node spaces need root to make namespaces and virtual links; run with sudo")
	}
	absolute, err := filepath.Abs(stateDir)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", stateDir, err)
	}
	if resolved, err := filepath.EvalSymlinks(absolute); err == nil {
		absolute = resolved
	}
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	sum := sha256.Sum256([]byte(absolute))
	return &site{dir: filepath.Join(absolute, "spaces"), id: hex.EncodeToString(sum[:4]), host: host, log: log}, nil
}

func (s *site) close() { _ = s.host.Close() }

// pin is the path that keeps a namespace of a node alive; the underlay's switch is pinned as node "_switch".
func (s *site) pin(node, kind string) string { return filepath.Join(s.dir, node, kind) }

// Ensure makes the node spaces that are missing, mends what is half made and returns all of them; it may be repeated, also after
// the process that called it before was killed. Spaces of nodes that are not asked for are left alone.
func Ensure(ctx context.Context, cfg Config) (Spaces, error) {
	for i, name := range cfg.Nodes {
		if !nodeName().MatchString(name) {
			return Spaces{}, fmt.Errorf("node name %q is not a DNS label: use 1 to 63 lower-case letters, digits and hyphens", name)
		}
		for _, other := range cfg.Nodes[:i] {
			if other == name {
				return Spaces{}, fmt.Errorf("node %q is named twice", name)
			}
		}
	}
	s, err := open(cfg.StateDir, cfg.Logger)
	if err != nil {
		return Spaces{}, err
	}
	defer s.close()
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o700); err != nil {
		return Spaces{}, fmt.Errorf("making the state directory: %w", err)
	}
	if err := s.ensureDir(); err != nil {
		return Spaces{}, err
	}
	failpoint.Hit("nodespace.after-directory")
	under, err := s.ensureUnderlay()
	if err != nil {
		return Spaces{}, fmt.Errorf("making the underlay of the nodes: %w", err)
	}
	defer under.close()
	failpoint.Hit("nodespace.after-underlay")
	if err := s.ensureEgress(ctx, cfg.Egress, under); err != nil {
		return Spaces{}, fmt.Errorf("the nodes' egress: %w", err)
	}
	failpoint.Hit("nodespace.after-egress")
	spaces := Spaces{Underlay: under.prefix, Host: under.prefix.Addr(), Floating: under.floating(), MTU: underlayMTU}
	spaces.Underlay = under.prefix.Masked()
	for _, name := range cfg.Nodes {
		if err := ctx.Err(); err != nil {
			return Spaces{}, err
		}
		space, err := s.ensureNode(name, cfg.Egress, under)
		if err != nil {
			return Spaces{}, fmt.Errorf("making the space of node %s: %w", name, err)
		}
		s.log.DebugContext(ctx, "node space ready", "node", name, "address", space.Address)
		spaces.Nodes = append(spaces.Nodes, space)
	}
	return spaces, nil
}

// Remove removes everything Ensure made below the state directory and on the host. All processes started in the spaces must have
// ended; if not, the error is ErrInUse, names them, and nothing is removed. Removing what is not there is no error.
func Remove(ctx context.Context, stateDir string) error {
	s, err := open(stateDir, nil)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.refuseWhileInUse(); err != nil {
		return err
	}
	if err := s.removeEgress(ctx); err != nil {
		return fmt.Errorf("removing the nodes' egress: %w", err)
	}
	if err := s.removeHostLink(); err != nil {
		return fmt.Errorf("removing the host's link to the nodes: %w", err)
	}
	failpoint.Hit("nodespace.after-host-link-removed")
	return s.removeDir()
}
