package server

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/console"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// consoles reaches machines' serial consoles.
type consoles struct {
	cache  *state.Cache
	sealer *trust.Sealer
	// secrets are the site's.
	secrets trust.Secrets
}

// Dial connects to a machine's serial console.
func (c consoles) Dial(ctx context.Context, node string) (io.ReadWriteCloser, error) {
	m := c.cache.View().Machine(node)
	if m == nil {
		return nil, fmt.Errorf("machine %q %w", node, state.ErrNotFound)
	}
	spec := m.Intent.Spec
	if spec.Console == "" {
		return nil, fmt.Errorf("machine %s has no console configured; enroll it with --console tcp://HOST:PORT or --console ipmi-sol", node)
	}
	credentials, err := c.credentials(m)
	if err != nil {
		return nil, err
	}
	target := power.Target{Name: node, Control: spec.Power, Credentials: credentials, MACs: spec.MACs}
	return console.Dial(ctx, spec.Console, target)
}

// credentials are what the BMC of a machine takes.
func (c consoles) credentials(m *state.Machine) (power.Credentials, error) {
	out := power.Credentials{User: m.Intent.Spec.Power.User}
	sealed, next := lifecycle.BMCPassword(&m.Intent, m.Record)
	for _, s := range []struct {
		sealed []byte
		into   *string
	}{{sealed, &out.Password}, {next, &out.Next}} {
		if len(s.sealed) == 0 {
			continue
		}
		password, err := c.sealer.Open(m.UID(), s.sealed)
		if err != nil {
			return power.Credentials{}, err
		}
		*s.into = string(password)
	}
	return out, nil
}

// Password is root's on a machine's console in the boot that goes on.
func (c consoles) Password(_ context.Context, node string) (user, password string, err error) {
	m := c.cache.View().Machine(node)
	if m == nil || m.Record == nil || m.Record.Boot == nil || m.Record.Boot.RedeemedAt == nil {
		return "", "", fmt.Errorf("no login for machine %q: it did not boot from this site: %w", node, state.ErrNotFound)
	}
	return "root", bootapi.ConsolePassword(c.secrets.At(m.Record.Boot.DecidedAt), m.UID(), m.Record.Boot.Generation), nil
}

// BMC is the login at a machine's BMC.
func (c consoles) BMC(_ context.Context, node string) (api.BMCLogin, error) {
	m := c.cache.View().Machine(node)
	if m == nil {
		return api.BMCLogin{}, fmt.Errorf("machine %q %w", node, state.ErrNotFound)
	}
	known, err := c.credentials(m)
	if err == nil && known.Password == "" && known.Next == "" {
		err = fmt.Errorf("password of the BMC of machine %q %w", node, state.ErrNotFound)
	}
	return api.BMCLogin{User: known.User, Password: known.Password, Next: known.Next}, err
}

// readSensors are the sensors of the machines that this server boots.
type readSensors struct {
	poller atomic.Pointer[sensors.Poller]
}

// of returns what was read of a machine; nil: nothing was.
func (r *readSensors) of(uid string) *api.MachineSensors {
	if p := r.poller.Load(); p != nil {
		return p.Sensors(uid)
	}
	return nil
}

// ownBoot refuses an agent that does not run in the boot that its identity was made for: what a machine carries is declared clean when that boot
// is over.
func ownBoot(view *state.View, node *api.NodeRecord) error {
	n := view.Node(node.Name)
	if n == nil || n.Identity == nil {
		return fmt.Errorf("node %q has no identity", node.Name)
	}
	if n.Identity.Boot != node.BootGeneration {
		return fmt.Errorf("the identity of node %q is of boot %d, but its agent runs in boot %d", node.Name, n.Identity.Boot, node.BootGeneration)
	}
	return nil
}

// ownPorts refuses a node that calls a place on a fabric its own which another node has: it would get into that one's networks.
func ownPorts(view *state.View, node *api.NodeRecord) error {
	own := placesOf(&node.Capacity)
	if len(own) == 0 {
		return nil
	}
	for other := range view.Agents() {
		if other.Name == node.Name {
			continue
		}
		for _, theirs := range placesOf(&other.Capacity) {
			if slices.Contains(own, theirs) {
				return fmt.Errorf("port %s of fabric %s is that of node %s; if the cable was moved, run: nearmetal node forget %s", theirs.At, theirs.Fabric, other.Name, other.Name)
			}
		}
	}
	return nil
}

// placesOf are the places on fabrics that a node calls its own: of its ports, and of adapters whose whole ports members may have.
func placesOf(capacity *api.NodeCapacity) []api.NodePort {
	var all []api.NodePort
	for _, p := range capacity.Ports {
		all = append(all, api.NodePort{Fabric: p.Fabric, At: p.At})
	}
	for i := range capacity.Devices {
		if d := &capacity.Devices[i]; d.GUID != "" {
			all = append(all, api.NodePort{Fabric: d.Cell, At: d.GUID})
		}
	}
	return all
}

// addresses is what the API tells of the provisioning network.
type addresses struct {
	network netboot.Network
	target  time.Duration
}

// Capacity is how many machines the range has addresses for.
func (a addresses) Capacity() int { return a.network.Machines.Size() }

// Address is that of a machine by its place in the range.
func (a addresses) Address(index int) netip.Addr { return a.network.Machines.At(index) }

// Range is the range in words.
func (a addresses) Range() string {
	if a.network.Machines.Size() == 0 {
		return ""
	}
	return a.network.Machines.String()
}

// TargetSeconds is how long a boot should take.
func (a addresses) TargetSeconds() float64 { return a.target.Seconds() }

// isMember reports whether a node is a machine that a member has whole: its agent is in the hands of the member's users.
func isMember(view *state.View, node string) bool {
	n := view.Node(node)
	return n != nil && n.Identity != nil && n.Identity.Member != ""
}

// asInspected is what is stored of a node when its agent connects: what the agent says, and of a machine that a member has whole what was inspected, since
// nothing that the member's users say of the machine may outlast them.
func asInspected(view *state.View, node api.NodeRecord) api.NodeRecord {
	if !isMember(view, node.Name) {
		return node
	}
	known := api.NodeRecord{
		Name: node.Name, AgentVersion: node.AgentVersion, BootGeneration: node.BootGeneration, FirstSeenAt: node.FirstSeenAt,
		Underlay: node.Underlay, Stacks: []api.StackCheck{}, Environments: []api.EnvironmentOnNode{},
	}
	if hardware := view.Node(node.Name).Hardware(); hardware != nil {
		known.Capacity = offer.Inspected(hardware).Capacity
	}
	return known
}
