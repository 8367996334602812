// Package nodespace makes the namespaces that stand in for machines when one computer plays several nodes (nearmetal dev).
//
// Each node has a network, a mount and a UTS namespace, pinned by bind mounts below STATE/nodes/NODE/ns, so that they outlive
// every process: an agent that is killed and started again finds the same network, the same mounts and the same host name.
// The nodes are joined by an underlay, a bridge in a network namespace of its own; the host has one end of one veth pair in it
// and is otherwise left alone, unless egress is asked for. It must never know about clusters, members or agents: it makes
// machines out of nothing and starts processes in them. Start reading at Ensure.
package nodespace

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os/exec"
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

// Ensure makes the node spaces that are missing, mends what is half made and returns all of them; it may be repeated, also after
// the process that called it before was killed. Spaces of nodes that are not asked for are left alone.
func Ensure(ctx context.Context, cfg Config) (Spaces, error) {
	return Spaces{}, errors.New("nodespace: not made yet")
}

// Remove removes everything Ensure made below the state directory and on the host. All processes started in the spaces must have
// ended. Removing what is not there is no error.
func Remove(ctx context.Context, stateDir string) error {
	return errors.New("nodespace: not made yet")
}

// Start starts cmd inside the space, in a session of its own: it lives on when the caller is killed, and has the PID
// cmd.Process.Pid on the host.
func Start(space Space, cmd *exec.Cmd) error {
	return errors.New("nodespace: not made yet")
}
