package sim

import (
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// node is one node: what is on its host survives its agent, and its disk survives the node, if it has one.
type node struct {
	w      *world
	record api.NodeRecord
	up     bool
	// boots counts starts of the machine: what a driver did before the last is over.
	boots int
	host  map[string]*hostMember
	// pool keeps its volumes.
	pool *pool
	// crossings are what its kernel has of volumes that cross, by cluster.
	crossings map[string]*crossing
	// networks are in force in its kernel, by network index; applied is the state that they come from.
	networks map[int]nodeNetwork
	applied  lifecycle.Epoch
	// term is the highest its agent has obeyed, on its disk; newest is what was obeyed there indeed.
	term   int64
	newest lifecycle.Epoch
	agent  *agent // nil while none runs
	link   *link  // of the agent, nil while it has none
	links  []*link
	// prefers is the server that its agent finds first, while that runs.
	prefers *server
	cuts    cuts
	// answered is when it last could answer the leader, answersSince since when it can without a break, on one stream: answers, nil while it
	// can't.
	answered, answersSince time.Time
	// spoke is when it last answered what it heard, whether or not there was a way for the answer.
	spoke   time.Time
	answers *link
	// sick: whatever its drivers do fails.
	sick bool
	// slow is until when what it is told is long on its way. What starts there until frail falls ill at once, or ends if it dies.
	slow, frail time.Time
	dies        bool
	// identity is the ID of that of its boot, on a machine that was booted. runs counts the starts of its agent.
	identity string
	runs     int
	// box is the machine it is while that runs an environment, life which of its lives; nil for a node that is no machine of the site.
	box     *box
	life    int
	leaving bool // it powers itself off
	// isMember: the machine was booted for a member, which has all of it.
	isMember bool
	// forgotten: it was out of the inventory once.
	forgotten bool
}

// hostMember is what is on a host of one member.
type hostMember struct {
	state   lifecycle.HostState
	message string
	// cluster is the UID, name the member's.
	cluster, name string
	addresses     []netip.Addr
	// since is when it began to run, files which generated files it has.
	since time.Time
	files string
	// ill: its checks say no. part: it is what a member on another node holds here, and runs nothing.
	ill, everIll, part bool
	// first: nothing of it ran before.
	first bool
	// forNext is the successor that this copy of a state was fetched for, "" for what is no such copy: the successor is not clean before it.
	forNext string
	// machine: it is a virtual machine. departed: it was sent to another node, or may have been; that is on the disk. life names its memory, which it
	// takes along when it goes on as another member; 0: it never ran.
	machine, departed bool
	life              int
	jobs              map[string]*jobRun
	// size is the number of the size that it has, slots are those of that size.
	size  int64
	slots []int
	// functions are those of adapters that it has here. holds: it is saved, and they are not released yet.
	functions []api.DeviceClaim
	holds     bool
	// volumes are the claims on those that it has mounted, of this number.
	volumes       []api.VolumeClaim
	volumesNumber int64
	// layers are those that it has, of this number.
	layers       []api.Layer
	layersNumber int64
	// limits are those of its I/O with volumes of its node, by the UIDs of these.
	limits map[string]int64
}

// remote is a member's address, and the underlay address of the node that it is on.
type remote struct {
	address netip.Addr
	peer    string
}

// nodeNetwork is a network as a node has it.
type nodeNetwork struct {
	ports    map[string]bool   // assignments on this node that may talk
	remotes  map[remote]bool   // members on other nodes that it talks to
	groups   []fabric.Group    // security groups of ports on all nodes
	floating []fabric.Floating // floating addresses that lead to ports on this node
}

func newNode(w *world, record api.NodeRecord) *node {
	return &node{w: w, record: record, up: true, host: map[string]*hostMember{}, pool: newPool(), crossings: map[string]*crossing{}}
}

func (n *node) startAgent() {
	if !n.up || n.agent != nil || n.leaving {
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
	n.breakCarries()
	n.box.setAgent(false)
	if l := n.link; l != nil {
		n.link = nil
		l.over = true
		if !n.up {
			l.up.mute() // nobody says goodbye
		}
		l.conn.Close()
	}
}

// sleep stops the agent where it is; it wakes and goes on as if no time had passed.
func (n *node) sleep(d time.Duration) {
	a := n.agent
	if a == nil || a.asleep {
		return
	}
	n.w.trace("agent of %s sleeps for %s", n.record.Name, d)
	a.asleep = true
	n.box.unhear(d)
	n.w.after(d, a.awake)
}

// loseMemory is what a machine loses with its power: all that ran, and all that was in force. Files are left on its disk.
func (n *node) loseMemory() {
	n.up = false
	n.boots++
	n.stopAgent()
	n.networks, n.applied, n.crossings = nil, lifecycle.Epoch{}, map[string]*crossing{}
	clear(n.pool.serves)
	for _, h := range n.host {
		if h.state == lifecycle.HostSaved {
			continue // it is on the disk
		}
		if h.machine && h.runs() {
			h.state, h.message = lifecycle.HostExited, "its machine has ended"
		} else {
			h.state = lifecycle.HostPrepared
		}
		h.ill = false
		h.endJobs()
	}
	n.w.touched()
}

// loseDisk is what a machine loses besides when it is installed anew.
func (n *node) loseDisk() {
	clear(n.host)
	n.pool = newPool()
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

// cut cuts the way from the machine, the way to it, or both, for a while.
func (n *node) cut(up, down bool, away time.Duration) {
	n.w.trace("%s is cut off: up %t, down %t, for %s", n.record.Name, up, down, away)
	n.box.unhear(away)
	n.cuts.up.Store(n.cuts.up.Load() || up)
	n.cuts.down.Store(n.cuts.down.Load() || down)
	n.breakCarries()
	n.w.after(away, n.mend)
}

// mend ends all cuts; what was held up arrives.
func (n *node) mend() {
	if !n.cuts.up.Load() && !n.cuts.down.Load() {
		return
	}
	n.w.trace("%s can be reached again", n.record.Name)
	n.answered = later(n.answered, n.spoke) // its answers arrive now
	n.cuts.up.Store(false)
	n.cuts.down.Store(false)
	var still []*link
	for _, l := range n.links {
		l.up.deliver()
		l.down.deliver()
		if !l.over || n.link == l || !l.served.Load() {
			still = append(still, l)
		}
	}
	n.links = still
}

// canAnswer reports whether the leader can be answered now.
func (n *node) canAnswer(s *server) bool { return n.speaks(s) && !n.cuts.up.Load() }

// speaks reports whether the leader is heard and answered; while there is no way up, the answers wait until there is one.
func (n *node) speaks(s *server) bool {
	return n.link != nil && n.link.s == s && n.agent != nil && !n.agent.asleep && n.up && !n.cuts.down.Load()
}
