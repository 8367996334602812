package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// node is one machine: what is on its host survives its agent, and its disk survives the machine.
type node struct {
	w      *world
	record api.NodeRecord
	up     bool
	// boots counts starts of the machine: what a driver did before the last is over.
	boots int
	host  map[string]*hostMember
	// networks are in force in its kernel, by cluster UID; applied is the state that they come from.
	networks map[string]network
	applied  lifecycle.Epoch
	// term is the highest its agent has obeyed, on its disk; newest is what was obeyed there indeed.
	term   int64
	newest lifecycle.Epoch
	agent  *agent // nil while none runs
	conns  []*connection
	// upCut, downCut: nothing gets from it, or to it.
	upCut, downCut bool
	// answered is when it last could answer the leader.
	answered time.Time
	// sick: whatever its drivers do fails.
	sick bool
}

// hostMember is what is on a host of one member.
type hostMember struct {
	state   lifecycle.HostState
	message string
	// cluster is the UID, name the member's.
	cluster, name string
	// since is when it began to run, files which generated files it has.
	since time.Time
	files string
	// ill: its checks say no.
	ill, everIll bool
}

// network is a cluster's network as a node has it.
type network struct {
	ports map[string]bool // assignments on this node that may talk
	peers map[string]bool // nodes it talks to
}

func newNode(w *world, record api.NodeRecord) *node {
	return &node{w: w, record: record, up: true, host: map[string]*hostMember{}}
}

func (n *node) startAgent() {
	if !n.up || n.agent != nil {
		return
	}
	n.w.trace("agent of %s starts", n.record.Name)
	newAgent(n)
}

// stopAgent kills the agent. The kernel tells the server, unless the machine went with it.
func (n *node) stopAgent() {
	a := n.agent
	if a == nil {
		return
	}
	n.w.trace("agent of %s ends", n.record.Name)
	a.over = true
	n.agent = nil
	if c := a.conn; c != nil && n.up {
		c.closeAgent()
	}
	n.relook()
}

// sleep stops the agent where it is; it wakes and goes on as if no time had passed.
func (n *node) sleep(d time.Duration) {
	a := n.agent
	if a == nil || a.asleep {
		return
	}
	n.w.trace("agent of %s sleeps for %s", n.record.Name, d)
	a.asleep = true
	n.relook()
	n.w.after(d, a.awake)
}

// loseMemory is what a machine loses with its power: all that ran, and all that was in force. Files are left on its disk.
func (n *node) loseMemory() {
	n.up = false
	n.boots++
	n.stopAgent()
	n.networks, n.applied = nil, lifecycle.Epoch{}
	for _, h := range n.host {
		h.state, h.ill = lifecycle.HostPrepared, false
	}
	n.w.touched()
}

// loseDisk is what a machine loses besides when it is installed anew.
func (n *node) loseDisk() {
	clear(n.host)
	n.term, n.newest = 0, lifecycle.Epoch{}
	n.w.touched()
}

// boot starts the machine after a while.
func (n *node) boot(after time.Duration) {
	boots := n.boots
	n.w.after(after, func() {
		if n.boots == boots && !n.up {
			n.w.trace("%s comes back", n.record.Name)
			n.up = true
			n.startAgent()
		}
	})
}

// fallSick lets everything fail that drivers do on the node, for a while.
func (n *node) fallSick(d time.Duration) {
	n.w.trace("%s falls sick for %s", n.record.Name, d)
	n.sick = true
	n.w.after(d, func() { n.sick = false })
}
