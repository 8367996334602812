package apiservertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Explainer is the plan of the queue, set by the test.
type Explainer struct {
	mu      sync.Mutex
	cache   *state.Cache
	waiting []api.Waiting
	noRoom  error
	asked   []api.ClusterIntent
}

// SetWaiting sets what waits for room, by full names.
func (e *Explainer) SetWaiting(waiting ...api.Waiting) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = waiting
}

// NoRoom is the error of a growth that has no room.
type NoRoom struct {
	Reason string
	Never  bool
}

func (e *NoRoom) Error() string { return e.Reason }

// Impossible tells what was set.
func (e *NoRoom) Impossible() bool { return e.Never }

// SetNoRoom makes every growth fail with an error, a *NoRoom say; nil: have room.
func (e *Explainer) SetNoRoom(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noRoom = err
}

// Asked returns the intents that were asked about.
func (e *Explainer) Asked() []api.ClusterIntent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]api.ClusterIntent(nil), e.asked...)
}

// Explain tells what of a cluster waits.
func (e *Explainer) Explain(name string) (api.Explanation, error) {
	c := e.cache.Cluster(name)
	if c == nil {
		return api.Explanation{}, state.ErrNotFound
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out := api.Explanation{Cluster: name, Phase: api.ClusterPending, Waiting: []api.Waiting{}, Message: "nothing waits"}
	if c.Record != nil {
		out.Phase = c.Record.Phase
	}
	for _, w := range e.waiting {
		if w.Cluster == name {
			out.Waiting, out.Message = append(out.Waiting, w), w.Reason
		}
	}
	return out, nil
}

// Queue returns what waits.
func (e *Explainer) Queue() ([]api.Waiting, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]api.Waiting{}, e.waiting...), nil
}

// CanGrow tells what was set.
func (e *Explainer) CanGrow(intent api.ClusterIntent) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, intent)
	return e.noRoom
}

// Machines returns one machine that fits for each group of whole machines.
func (e *Explainer) Machines(intent api.ClusterIntent) ([]api.MachineFit, error) {
	var fits []api.MachineFit
	for _, g := range intent.Spec.Groups {
		if g.Stack == api.StackMetal {
			fits = append(fits, api.MachineFit{Group: g.Name, Node: "b1", Fits: true, Reason: "off"})
		}
	}
	return fits, nil
}

// CanResize returns what was set.
func (e *Explainer) CanResize(intent api.ClusterIntent) error { return e.CanGrow(intent) }

// CanMove tells what was set.
func (e *Explainer) CanMove(intent api.ClusterIntent) error { return e.CanGrow(intent) }

// Certifier certifies every key alike.
type Certifier struct{ now func() time.Time }

// Certify returns a line that names what it is for.
func (c Certifier) Certify(intent api.ClusterIntent, key ssh.PublicKey, user string) (api.Certificate, error) {
	return api.Certificate{
		Certificate: key.Type() + "-cert for " + intent.UID + " and " + user, ValidUntil: c.now().Add(10 * time.Minute).UTC(),
		KnownHosts: "@cert-authority * ssh-ed25519 AAAA", User: "hpc",
	}, nil
}

// Tunnels opens streams to a server of the test's, for which members stand.
type Tunnels struct {
	mu     sync.Mutex
	opened []string
	broken error
	// Member serves a stream; it is closed when Member returns. Set it before the first tunnel; nil: what comes is sent back.
	Member func(conn *net.TCPConn)
}

// SetBroken makes opening fail, nil: work.
func (t *Tunnels) SetBroken(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = err
}

// Opened returns which were opened, as NODE/ASSIGNMENT.
func (t *Tunnels) Opened() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.opened...)
}

// Homes stands for the agents that count homes.
type Homes struct {
	mu    sync.Mutex
	usage api.HomeUsage
	err   error
	asked []string
}

// Set is what every home holds, or why it can't be counted.
func (h *Homes) Set(usage api.HomeUsage, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.usage, h.err, h.asked = usage, err, nil
}

// Asked returns what was asked since the last Set, as NODE/ASSIGNMENT.
func (h *Homes) Asked() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.asked...)
}

// HomeUsage answers as it was set.
func (h *Homes) HomeUsage(_ context.Context, node, memberID string) (api.HomeUsage, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, node+"/"+memberID)
	return h.usage, h.err
}

// Networks stands for the agents that check networks, and for what nodes should have.
type Networks struct {
	mu      sync.Mutex
	reports map[string]agentstream.NetworkReport
	desired map[string][]fabric.Network
	counts  map[string]api.PortCounters
}

// SetCounters is what the ports of all nodes counted, by port ID.
func (n *Networks) SetCounters(counts map[string]api.PortCounters) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counts = counts
}

// PortCounters answers as it was set.
func (n *Networks) PortCounters(string) map[string]api.PortCounters {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts
}

// Set is what a node finds of each network, and how it should have one; without a report, its agent is not connected.
func (n *Networks) Set(node string, desired fabric.Network, report *agentstream.NetworkReport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.desired == nil {
		n.desired, n.reports = map[string][]fabric.Network{}, map[string]agentstream.NetworkReport{}
	}
	others := slices.DeleteFunc(n.desired[node], func(other fabric.Network) bool { return other.Index == desired.Index })
	n.desired[node] = append(others, desired)
	if report != nil {
		n.reports[node] = *report
	}
}

// CheckNetwork answers as it was set.
func (n *Networks) CheckNetwork(_ context.Context, node string, _ int, _ uint64) (agentstream.NetworkReport, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	report, ok := n.reports[node]
	if !ok {
		return report, fmt.Errorf("the agent of node %q is not connected to this server", node)
	}
	return report, nil
}

// DesiredNetwork answers as it was set.
func (n *Networks) DesiredNetwork(node string, network int) (fabric.Network, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, desired := range n.desired[node] {
		if desired.Index == network {
			return desired, true, nil
		}
	}
	return fabric.Network{}, false, nil
}

// Hosts stands for the agents that check hosts.
type Hosts struct {
	mu    sync.Mutex
	found api.HostCheck
	err   error
}

// Set is what every host lacks, or why it can't be checked.
func (h *Hosts) Set(found api.HostCheck, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.found, h.err = found, err
}

// CheckHost answers as it was set.
func (h *Hosts) CheckHost(context.Context, string) (api.HostCheck, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.found, h.err
}

// OpenConsole is OpenTunnel: it notes how it was asked behind the member.
func (t *Tunnels) OpenConsole(ctx context.Context, node, memberID string, r api.ConsoleRequest) (io.ReadWriteCloser, error) {
	return t.OpenTunnel(ctx, node, fmt.Sprintf("%s %+v", memberID, r), 0)
}

// OpenDisplay is OpenTunnel: it notes the display behind the member.
func (t *Tunnels) OpenDisplay(ctx context.Context, node, memberID string) (io.ReadWriteCloser, error) {
	return t.OpenTunnel(ctx, node, memberID+" display", 0)
}

// OpenVolume is OpenTunnel: it notes the snapshot behind the volume.
func (t *Tunnels) OpenVolume(ctx context.Context, node string, v agentstream.VolumeCopy) (io.ReadWriteCloser, error) {
	return t.OpenTunnel(ctx, node, strings.TrimSpace(v.UID+" "+v.Snapshot), 0)
}

// OpenContent is OpenTunnel: it notes the content behind the volume.
func (t *Tunnels) OpenContent(ctx context.Context, node, volumeUID string) (io.ReadWriteCloser, error) {
	return t.OpenTunnel(ctx, node, volumeUID+" content", 0)
}

// OpenFiles is OpenTunnel: it notes the files behind the member.
func (t *Tunnels) OpenFiles(ctx context.Context, node, memberID string, use changedfiles.Use) (io.ReadWriteCloser, error) {
	return t.OpenTunnel(ctx, node, strings.TrimSuffix(memberID+" files "+string(use), " "), 0)
}

// OpenTunnel connects to the test's server.
func (t *Tunnels) OpenTunnel(ctx context.Context, node, memberID string, _ int) (io.ReadWriteCloser, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken != nil {
		return nil, t.broken
	}
	t.opened = append(t.opened, node+"/"+memberID)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		conn, err := l.Accept()
		if err = errors.Join(err, l.Close()); err != nil {
			return
		}
		defer conn.Close()
		if t.Member != nil {
			t.Member(conn.(*net.TCPConn))
			return
		}
		_, _ = io.Copy(conn, conn)
	}()
	return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
}
