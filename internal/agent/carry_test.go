package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/monitor"
)

// The member that moves in these tests, from n1, and its successor on n2.
const (
	moving = "uc1.c1-0.1"
	heir   = "uc1.c1-0.2"
)

// carrySite is two nodes that carry virtual machines, and a leader that says what the test wants it to.
type carrySite struct {
	*site
	n1, n2   *node
	revision int64
	starts   int // until the member ran first: a start may come before its network, and is made again
}

func newCarrySite(t *testing.T) *carrySite {
	t.Helper()
	s := &carrySite{site: newUnledSite(t, 5*time.Minute)}
	s.carried = func(r agentstream.CarryRequest) (monitor.Carried, error) {
		if r.Node != "n2" || r.Successor != heir {
			return monitor.Carried{}, errors.New("this node has no such successor")
		}
		return monitor.Carried{Node: "n1", ID: moving}, nil
	}
	s.n1, s.n2 = s.machines("n1", 2), s.machines("n2", 2)
	return s
}

// tell gives a node's agent its whole desired state: these members, on the one network.
func (s *carrySite) tell(n *node, members ...agentstream.Member) {
	s.revision++
	d := agentstream.Desired{Term: 1, Revision: s.revision}
	network := fabric.Network{Network: carryNetwork}
	for _, m := range members {
		if !m.Release && !m.Assignment.Saved {
			network.Ports = append(network.Ports, fabric.PortOf(&m.Assignment, 0))
		}
	}
	if len(members) > 0 {
		d.Networks = []fabric.Network{network}
	}
	d.Members = members
	s.agent.SetDesired(n.name, d)
}

var carryNetwork = api.Network{UID: "uc1", Index: 1, Prefix: netip.MustParsePrefix("10.64.0.0/20"), Gateway: netip.MustParseAddr("10.64.0.1")}

// first is the member as n1 is told of it, next its successor as n2 is.
func first(change ...func(*agentstream.Member)) agentstream.Member {
	return carryMember(moving, 1, change)
}

func next(change ...func(*agentstream.Member)) agentstream.Member {
	return carryMember(heir, 2, append([]func(*agentstream.Member){func(m *agentstream.Member) {
		m.Assignment.From, m.Assignment.Of, m.FromNode = moving, moving, "n1"
	}}, change...))
}

func carryMember(id string, generation int64, change []func(*agentstream.Member)) agentstream.Member {
	m := agentstream.Member{Member: driver.Member{
		Assignment: api.Assignment{
			ID: id, ClusterUID: "uc1", Cluster: "c1", Generation: generation, Group: "c1", Member: "c1-0", Node: fmt.Sprintf("n%d", generation),
			Stack: api.StackVM, Environment: "local", Slots: []int{0}, CPUs: []int{0}, Memory: []api.MemoryClaim{{Bytes: 64 << 20}},
			Ports: []api.PortClaim{{Network: "uc1", Kind: api.PortTAP, MAC: "02:6e:00:01:00:02", Address: netip.MustParseAddr("10.64.0.2")}},
		},
		Networks: []api.Network{carryNetwork}, User: driver.User{Name: "hpc", UID: 1000, GID: 1000},
	}}
	for _, c := range change {
		c(&m)
	}
	return m
}

func moves(m *agentstream.Member)    { m.Move = &agentstream.Move{To: heir} }
func live(m *agentstream.Member)     { m.Live = true }
func released(m *agentstream.Member) { m.Release = true }
func takenBack(m *agentstream.Member) {
	m.TakeBack = true
}

func saved(m *agentstream.Member) {
	m.Save, m.Assignment.Saved, m.Assignment.Memory, m.Assignment.Slots = true, true, nil, nil
}

// succeeded is the successor once it is the member.
func succeeded(m *agentstream.Member) { m.Assignment.Of, m.FromNode, m.Live = "", "", false }

// awaitSaid waits until what a node says of a member is as asked.
func (s *carrySite) awaitSaid(n *node, id, what string, ok func(monitor.MemberState) bool) monitor.MemberState {
	s.t.Helper()
	var said monitor.MemberState
	s.awaitReports(func() (known bool) {
		said, known = s.agent.MemberState(n.name, id)
		return known && ok(said)
	}, func() string {
		return fmt.Sprintf("%s does not report that %s is %s; the last report is %+v\n%s\n%s", n.name, id, what, said,
			strings.Join(s.n1.host.Calls(), "\n"), strings.Join(s.n2.host.Calls(), "\n"))
	})
	return said
}

func (s *carrySite) awaitPhaseOn(n *node, id string, phase api.MemberPhase) monitor.MemberState {
	s.t.Helper()
	return s.awaitSaid(n, id, string(phase), func(m monitor.MemberState) bool { return m.Phase == phase })
}

func (s *carrySite) awaitClean(n *node, id string) {
	s.t.Helper()
	s.awaitReports(func() bool { return slices.Contains(s.agent.Clean(n.name), id) },
		func() string {
			return fmt.Sprintf("%s does not report that %s is clean; it has %v", n.name, id, n.host.IDs())
		})
}

// begin starts the member on n1 and returns how much it has done.
func (s *carrySite) begin() int64 {
	s.t.Helper()
	s.tell(s.n1, first())
	s.tell(s.n2)
	s.awaitPhaseOn(s.n1, moving, api.MemberReady)
	s.starts = calls(s.n1, "Start ")
	return s.n1.host.Progress(moving)
}

// settle makes the successor the member, ends the cluster, and checks that nothing is left and that nobody was started twice.
func (s *carrySite) settle(before int64) {
	s.t.Helper()
	if after := s.n2.host.Progress(heir); after <= before {
		s.t.Errorf("the member has done %d on n2, and had done %d on n1: it began from the start", after, before)
	}
	s.tell(s.n2, next(succeeded))
	s.tell(s.n1, first(released))
	s.awaitClean(s.n1, moving)
	s.tell(s.n1)
	s.awaitPhaseOn(s.n2, heir, api.MemberReady)
	if got := s.n2.host.IDs(); !slices.Equal(got, []string{heir}) {
		s.t.Errorf("n2 has %v, want %s alone", got, heir)
	}
	s.tell(s.n2, next(succeeded, released))
	s.awaitClean(s.n2, heir)
	s.ended()
}

func (s *carrySite) ended() {
	s.t.Helper()
	s.nothingLeft(s.n1, s.n2)
	if starts := calls(s.n1, "Start ") + calls(s.n2, "Start ") - s.starts; starts != 0 {
		s.t.Errorf("members were started %d times more\n%s\n%s", starts, strings.Join(s.n1.host.Calls(), "\n"), strings.Join(s.n2.host.Calls(), "\n"))
	}
}

func TestARunningMemberMovesToAnotherNodeThroughTheServer(t *testing.T) {
	s := newCarrySite(t)
	before := s.begin()
	s.tell(s.n1, first(moves))
	s.tell(s.n2, next(live))
	s.awaitPhaseOn(s.n2, heir, api.MemberReady)
	said := s.awaitSaid(s.n2, heir, "reported", func(m monitor.MemberState) bool { return m.Moved != nil })
	if said.Moved.Bytes != 1 || said.Moved.Total <= 0 {
		t.Errorf("the report of the move is %+v, want that of the sender", said.Moved)
	}
	s.awaitSaid(s.n2, heir, "updated with its own files", func(monitor.MemberState) bool { return calls(s.n2, "Update ") == 1 })
	gone := s.awaitPhaseOn(s.n1, moving, api.MemberUnknown)
	if want := "it was sent to another node"; gone.Message != want || gone.HandedOver {
		t.Errorf("n1 says %q (handed over: %t) of the member that it sent, want %q", gone.Message, gone.HandedOver, want)
	}
	s.awaitPortless(s.n1)
	s.settle(before)
}

// awaitPortless waits until a node's networks have no port: what has gone must not be spoken to there any more.
func (s *carrySite) awaitPortless(n *node) {
	s.t.Helper()
	patience := time.After(20 * time.Second)
	for {
		changed := s.agent.Changed()
		if networks := n.fabric.Networks(); len(networks) == 0 || len(networks[0].Ports) == 0 {
			return
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond):
		case <-patience:
			s.t.Fatalf("%s keeps the port of a member that has left: %+v", n.name, n.fabric.Networks())
		}
	}
}

func TestASavedMemberGoesOnOnAnotherNode(t *testing.T) {
	s := newCarrySite(t)
	before := s.begin()
	s.tell(s.n1, first(func(m *agentstream.Member) { m.Save = true }))
	s.awaitPhaseOn(s.n1, moving, api.MemberSaved)
	s.tell(s.n1, first(saved))
	s.tell(s.n2, next())
	said := s.awaitPhaseOn(s.n2, heir, api.MemberReady)
	if said = s.awaitSaid(s.n2, heir, "reported", func(m monitor.MemberState) bool { return m.Moved != nil }); said.Moved.Bytes <= 0 {
		t.Errorf("the report is %+v, want the bytes of the state", said.Moved)
	}
	s.settle(before)
}

func TestAMoveThatFailsLeavesTheMemberRunningAndIsNotTriedAgain(t *testing.T) {
	s := newCarrySite(t)
	before := s.begin()
	s.n1.host.Script(moving, fake.Behaviour{FailSends: 1})
	s.tell(s.n1, first(moves))
	s.tell(s.n2, next(live))
	s.awaitPhaseOn(s.n2, heir, api.MemberFailed)
	if got := calls(s.n2, "Receive "); got != 1 {
		t.Errorf("n2 tried %d times to receive it, want once: its leader asks again", got)
	}
	s.awaitPhaseOn(s.n1, moving, api.MemberReady)
	s.tell(s.n2, next(live, released))
	s.awaitClean(s.n2, heir)
	s.tell(s.n1, first())
	s.n1.restart(2)
	s.awaitPhaseOn(s.n1, moving, api.MemberReady)
	if after := s.n1.host.Progress(moving); after <= before {
		t.Errorf("the member has done %d, and had done %d before", after, before)
	}
	s.tell(s.n1, first(released))
	s.awaitClean(s.n1, moving)
	s.ended()
}

// unfit is a driver of a host on which no memory of another can go on.
type unfit struct {
	driver.Driver
	saver
	driver.Mover
}

type saver interface{ driver.Saver }

func (unfit) Import(context.Context, driver.Member, string, io.Reader) (time.Duration, error) {
	return 0, fmt.Errorf("%w: it runs on another QEMU", driver.ErrUnfit)
}

// stoodStill is a driver to which another host says that the member stood still for an hour before its state came.
type stoodStill struct {
	driver.Driver
	saver
	driver.Mover
}

func (d stoodStill) Import(ctx context.Context, m driver.Member, from string, state io.Reader) (time.Duration, error) {
	_, err := d.saver.Import(ctx, m, from, state)
	return time.Hour, err
}

func TestAnOfflineMoveReportsHowLongTheMemberStoodStill(t *testing.T) {
	s := newCarrySite(t)
	s.n2.stop()
	s.n2.wrap = func(d driver.Driver) driver.Driver { return stoodStill{d, d.(driver.Saver), d.(driver.Mover)} }
	s.n2.startAnew(2)
	before := s.begin()
	s.tell(s.n1, first(func(m *agentstream.Member) { m.Save = true }))
	s.awaitPhaseOn(s.n1, moving, api.MemberSaved)
	s.tell(s.n1, first(saved))
	s.tell(s.n2, next())
	said := s.awaitSaid(s.n2, heir, "reported", func(m monitor.MemberState) bool { return m.Moved != nil && m.Phase == api.MemberReady })
	if r := said.Moved; r.Downtime <= time.Hour || r.Total != r.Downtime {
		t.Errorf("the member stood still for %s of %s, want an hour and the time of the fetch of as much", r.Downtime, r.Total)
	}
	s.settle(before)
}

func TestAStateThatCanNotGoOnIsFetchedOnce(t *testing.T) {
	s := newCarrySite(t)
	s.n2.stop()
	s.n2.wrap = func(d driver.Driver) driver.Driver { return unfit{d, d.(driver.Saver), d.(driver.Mover)} }
	s.n2.startAnew(2)
	s.begin()
	s.tell(s.n1, first(func(m *agentstream.Member) { m.Save = true }))
	s.awaitPhaseOn(s.n1, moving, api.MemberSaved)
	s.tell(s.n1, first(saved))
	s.tell(s.n2, next())
	said := s.awaitPhaseOn(s.n2, heir, api.MemberFailed)
	if !strings.Contains(said.Message, "another QEMU") {
		t.Errorf("the member has failed because of %q, want the difference", said.Message)
	}
	if got := calls(s.n1, "Export "); got != 1 {
		t.Errorf("its state was fetched %d times, want once: no further attempt can succeed", got)
	}
	s.tell(s.n2, next(released))
	s.awaitClean(s.n2, heir)
	s.tell(s.n1, first(saved, released))
	s.awaitClean(s.n1, moving)
	s.ended()
}

// deaf is a driver at whose end a move's connection breaks at the sender's last word, before it was heard, or at the receiver's own.
type deaf struct {
	driver.Driver
	driver.Saver
	mover
	before bool
}

type mover interface{ driver.Mover }

func (d deaf) Receive(ctx context.Context, m driver.Member, from string, conn net.Conn) error {
	return d.mover.Receive(ctx, m, from, &cutConn{Conn: conn, before: d.before})
}

// cutConn breaks at the second thing that is read, or written.
type cutConn struct {
	net.Conn
	before       bool
	read, writes int
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.read++; c.before && c.writes > 0 { // go has come
		_ = c.Conn.Close()
		return 0, errors.New("the connection was cut")
	}
	return n, err
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.writes++; !c.before && c.writes > 1 { // runs
		_ = c.Conn.Close()
		return 0, errors.New("the connection was cut")
	}
	return c.Conn.Write(p)
}

func TestAMemberWhoseFateIsUnknownStandsStillUntilItIsTakenBack(t *testing.T) {
	s := newCarrySite(t)
	s.cutMoves(s.n2, true)
	before := s.begin()
	s.tell(s.n1, first(moves))
	s.tell(s.n2, next(live))
	s.awaitPhaseOn(s.n2, heir, api.MemberFailed)
	s.awaitSaid(s.n1, moving, "handed over", func(m monitor.MemberState) bool { return m.HandedOver && m.Phase == api.MemberUnknown })
	s.n1.restart(2) // which changes nothing
	s.awaitSaid(s.n1, moving, "handed over", func(m monitor.MemberState) bool { return m.HandedOver && m.Phase == api.MemberUnknown })
	s.n2.restart(2) // another attempt finds it sent already
	said := s.awaitPhaseOn(s.n2, heir, api.MemberFailed)
	if !strings.Contains(said.Message, "the member has been sent already") {
		t.Errorf("n2 says %q, want why it can't be received", said.Message)
	}
	s.tell(s.n2, next(live, released))
	s.awaitClean(s.n2, heir)
	s.tell(s.n1, first(takenBack))
	s.awaitPhaseOn(s.n1, moving, api.MemberReady)
	s.tell(s.n1, first())
	s.n1.restart(2)
	s.awaitPhaseOn(s.n1, moving, api.MemberReady)
	if after := s.n1.host.Progress(moving); after <= before {
		t.Errorf("the member has done %d, and had done %d before", after, before)
	}
	s.tell(s.n1, first(released))
	s.awaitClean(s.n1, moving)
	s.ended()
}

func TestAMemberThatRunsThoughItsSenderDidNotHearOfItIsCleanedThere(t *testing.T) {
	s := newCarrySite(t)
	s.cutMoves(s.n2, false)
	before := s.begin()
	s.tell(s.n1, first(moves))
	s.tell(s.n2, next(live))
	s.awaitPhaseOn(s.n2, heir, api.MemberReady)
	s.awaitSaid(s.n1, moving, "handed over", func(m monitor.MemberState) bool { return m.HandedOver })
	s.settle(before)
}

// cutMoves breaks the connection of every move at a node, before the member is there or after.
func (s *carrySite) cutMoves(n *node, before bool) {
	n.stop()
	n.wrap = func(d driver.Driver) driver.Driver {
		return deaf{d, d.(driver.Saver), d.(driver.Mover), before}
	}
	n.startAnew(2)
}

func TestAMemberThatWasSentIsNotStartedAgain(t *testing.T) {
	s := newCarrySite(t)
	before := s.begin()
	s.tell(s.n1, first(moves))
	s.tell(s.n2, next(live))
	s.awaitPhaseOn(s.n2, heir, api.MemberReady)
	s.awaitPhaseOn(s.n1, moving, api.MemberUnknown)
	s.n1.restart(2)
	s.awaitPhaseOn(s.n1, moving, api.MemberUnknown)
	s.tell(s.n1, first()) // a leader that no longer knows of the move
	s.awaitPhaseOn(s.n1, moving, api.MemberFailed)
	s.n1.restart(2)
	s.awaitPhaseOn(s.n1, moving, api.MemberFailed)
	s.settle(before)
}

// late is a driver that begins to send once it may.
type late struct {
	driver.Driver
	driver.Saver
	mover
	may <-chan struct{}
}

func (d late) Send(ctx context.Context, id string, conn net.Conn, limits driver.MoveLimits) (driver.MoveReport, error) {
	select {
	case <-d.may:
	case <-ctx.Done():
	}
	return d.mover.Send(ctx, id, conn, limits)
}

func TestAReceiverThatRestartsAmidAMoveBeginsAgain(t *testing.T) {
	s := newCarrySite(t)
	may := make(chan struct{})
	s.n1.stop()
	s.n1.wrap = func(d driver.Driver) driver.Driver { return late{d, d.(driver.Saver), d.(driver.Mover), may} }
	s.n1.startAnew(2)
	before := s.begin()
	s.tell(s.n1, first(moves))
	s.tell(s.n2, next(live))
	s.awaitSaid(s.n2, heir, "arriving", func(m monitor.MemberState) bool { return m.Arriving != nil })
	s.n2.restart(2)
	close(may)
	s.awaitPhaseOn(s.n2, heir, api.MemberReady)
	s.settle(before)
}

func TestASenderThatRestartsAmidAMoveKeepsTheMember(t *testing.T) {
	s := newCarrySite(t)
	before := s.begin()
	s.n1.host.Script(moving, fake.Behaviour{MoveDelay: time.Hour})
	s.tell(s.n1, first(moves))
	s.tell(s.n2, next(live))
	s.awaitSaid(s.n2, heir, "arriving", func(m monitor.MemberState) bool { return m.Arriving != nil })
	s.n1.restart(2)
	s.awaitPhaseOn(s.n2, heir, api.MemberFailed)
	s.awaitPhaseOn(s.n1, moving, api.MemberReady)
	s.n1.host.Script(moving, fake.Behaviour{})
	s.tell(s.n2, next(live, released))
	s.awaitClean(s.n2, heir)
	s.tell(s.n2)
	s.tell(s.n2, next(live)) // as another successor would be
	s.awaitPhaseOn(s.n2, heir, api.MemberReady)
	s.settle(before)
}

func TestAMemberIsGivenOnlyToTheSuccessorThatItsLeaderNames(t *testing.T) {
	s := newCarrySite(t)
	s.begin()
	s.tell(s.n1, first(func(m *agentstream.Member) { m.Move = &agentstream.Move{To: "uc1.c1-0.3"} }))
	s.tell(s.n2, next(live))
	said := s.awaitSaid(s.n2, heir, "refused", func(m monitor.MemberState) bool { return strings.Contains(m.Message, "has no order to move") })
	if said.Phase != api.MemberPreparing {
		t.Errorf("n2 says %q of what it can't fetch yet, want %q", said.Phase, api.MemberPreparing)
	}
	if sends := calls(s.n1, "Send "); sends != 0 {
		t.Errorf("the member was sent %d times to a successor that n1 was not told of", sends)
	}
	s.tell(s.n1, first())
	s.awaitPhaseOn(s.n1, moving, api.MemberReady)
}

func TestAMoveThatIsNoLongerWantedEnds(t *testing.T) {
	s := newCarrySite(t)
	s.begin()
	s.n1.host.Script(moving, fake.Behaviour{MoveDelay: time.Hour})
	s.tell(s.n1, first(moves))
	s.tell(s.n2, next(live))
	s.awaitSaid(s.n2, heir, "arriving", func(m monitor.MemberState) bool { return m.Arriving != nil })
	s.tell(s.n1, first(released))
	s.tell(s.n2, next(live, released))
	s.awaitClean(s.n1, moving)
	s.awaitClean(s.n2, heir)
	s.ended()
}

// leaveState saves the member, and leaves n2 as an agent does that was killed between Import and Restore. Its remains resist the first two attempts to
// clean them. It returns how much the member has done.
func (s *carrySite) leaveState() int64 {
	s.t.Helper()
	before := s.begin()
	s.tell(s.n1, first(func(m *agentstream.Member) { m.Save = true }))
	s.awaitPhaseOn(s.n1, moving, api.MemberSaved)
	s.tell(s.n1, first(saved))
	s.n2.stop()
	left := fake.NewVM(s.n2.host, s.n2.fabric)
	if _, err := left.Import(s.t.Context(), next().Member, moving, strings.NewReader(fmt.Sprintf(`{"of":%q,"progress":-100}`, moving))); err != nil {
		s.t.Fatal(err)
	}
	s.n2.host.Script(moving, fake.Behaviour{FailCleans: 2})
	return before
}

func TestWhatAnEarlierAttemptLeftOfAStateIsRemovedFirst(t *testing.T) {
	s := newCarrySite(t)
	before := s.leaveState()
	s.tell(s.n2, next())
	s.n2.startAnew(2)
	s.awaitPhaseOn(s.n2, heir, api.MemberReady)
	s.settle(before)
}

func TestASuccessorIsNotCleanBeforeTheStateThatWasFetchedForIt(t *testing.T) {
	s := newCarrySite(t)
	s.leaveState()
	s.tell(s.n2, next(released))
	s.n2.startAnew(2)
	s.awaitClean(s.n2, heir)
	if got := s.n2.host.IDs(); len(got) > 0 {
		t.Errorf("n2 confirms that %s is clean, and still has %v", heir, got)
	}
}
