package monitor

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

func TestOnlyAnswersKeepANodeAlive(t *testing.T) {
	m, now := clocked(t)
	s := connected(t, m, "a1")
	var ended error
	s.cancel = func(cause error) { ended = cause }
	for second := 1; second <= 6; second++ {
		*now = now.Add(time.Second)
		m.ping("n1", s)
		m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x", Message: fmt.Sprint(second)}}})
		m.answered("n1", s, 0) // a heartbeat that answers nothing
		want := api.NodeReady
		switch {
		case second >= 5:
			want = api.NodeDown
		case second >= 3:
			want = api.NodeUnknown
		}
		if phase, _, message := m.Node("n1"); phase != want {
			t.Errorf("after %d s of words without an answer: %s (%s), want %s", second, phase, message, want)
		}
		if (ended != nil) != (second >= 5) {
			t.Errorf("after %d s: the stream ended with %v", second, ended)
		}
	}
}

func TestAnAnswerCountsFromWhenItsPingWasSent(t *testing.T) {
	m, now := clocked(t)
	s := connected(t, m, "a1")
	for range 3 {
		*now = now.Add(time.Second)
		m.ping("n1", s)
	}
	want := now.Add(-time.Second) // of ping 2
	m.answered("n1", s, 2)
	if _, seen, _ := m.Node("n1"); !seen.Equal(want) {
		t.Errorf("got last seen %v, want %v", seen, want)
	}
	for _, seq := range []int64{1, 2, 4, -1, 1 << 62} {
		if m.answered("n1", s, seq); !m.nodes["n1"].lastSeen.Equal(want) {
			t.Errorf("an answer to ping %d, which none waits for, counts", seq)
		}
	}
	if m.answered("n1", s, 3); !m.nodes["n1"].lastSeen.Equal(*now) || len(s.pings.sent) != 0 {
		t.Errorf("after the last: last seen %v, waiting %v; want %v and none", m.nodes["n1"].lastSeen, s.pings.sent, *now)
	}
}

func TestANodeThatAnswersAgainAfterItWasDoubtedIsNews(t *testing.T) {
	m, now := clocked(t)
	s := connected(t, m, "a1")
	m.ping("n1", s)
	m.answered("n1", s, 1)
	m.ping("n1", s)
	*now = now.Add(3 * time.Second)
	if phase, _, _ := m.Node("n1"); phase != api.NodeUnknown {
		t.Fatalf("after 3 s without an answer: %s, want unknown", phase)
	}
	if next := m.NextDeath(); !next.Equal(now.Add(2 * time.Second)) {
		t.Errorf("its phase changes next at %v, want in 2 s", next)
	}
	m.ping("n1", s)
	changed := m.Changed()
	if m.answered("n1", s, 3); !isClosed(changed) {
		t.Error("who waits is not told of an answer after doubts")
	}
	if phase, _, _ := m.Node("n1"); phase != api.NodeReady {
		t.Errorf("after the answer: %s, want ready", phase)
	}
	if next := m.NextDeath(); !next.Equal(now.Add(2*time.Second)) && !next.Equal(now.Add(2500*time.Millisecond)) {
		t.Errorf("its phase changes next at %v, want when it is doubted again", next)
	}
	changed = m.Changed()
	m.ping("n1", s)
	*now = now.Add(time.Second)
	if m.answered("n1", s, 4); isClosed(changed) {
		t.Error("an ordinary answer wakes who waits for changes")
	}
}

func TestAStreamThatCarriesWordsOneWayOnlyIsEnded(t *testing.T) {
	now := make(chan time.Time, 1)
	ticks := make(chan time.Time)
	at := time.Now()
	now <- at
	m := New(Config{
		LogDir: t.TempDir(), DeathTimer: 5 * time.Second, Log: slog.New(slog.DiscardHandler),
		Now:  func() time.Time { v := <-now; now <- v; return v },
		Tick: func(time.Duration) (<-chan time.Time, func()) { return ticks, func() {} },
	})
	server := serve(t, m, nil)
	c := greeted(t, m, server, "a1")
	step := func(seconds int) {
		v := <-now
		now <- v.Add(time.Duration(seconds) * time.Second)
		ticks <- time.Time{}
	}
	answer := func() {
		t.Helper()
		down, err := c.Receive()
		if err != nil || down.Ping == nil {
			t.Fatalf("got %+v, %v; want a ping", down, err)
		}
		if err := c.Send(agentstream.Up{Heartbeat: &agentstream.Heartbeat{Ping: down.Ping.Seq}}); err != nil {
			t.Fatal(err)
		}
	}
	step(3) // doubted, so that its answer is told
	changed := m.Changed()
	answer()
	<-changed
	if phase, _, _ := m.Node("n1"); phase != api.NodeReady {
		t.Fatalf("an agent that answers: %s, want ready", phase)
	}
	step(5)
	for {
		if _, err := c.Receive(); err != nil {
			break // ended by the server
		}
	}
	if phase, _, _ := m.Node("n1"); phase != api.NodeDown {
		t.Errorf("an agent that does not answer: %s, want down", phase)
	}
}

func TestTimesCarryTheReadingThatJumpsOfTheClockDoNotMove(t *testing.T) {
	m := newTest(t)
	s := connected(t, m, "a1")
	m.ping("n1", s)
	m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x"}}})
	m.answered("n1", s, 1)
	_, seen, _ := m.Node("n1")
	for what, at := range map[string]time.Time{
		"the start": m.started, "last seen": seen, "the next death": m.NextDeath(), "since": m.members[saidBy{"n1", "x"}].since,
	} {
		if !strings.Contains(at.String(), " m=") { // as time.Time.String writes a monotonic reading
			t.Errorf("%s has lost its monotonic reading: %v", what, at)
		}
	}
}

// BenchmarkASecondOfTenThousandAgents is a second of pings and answers; it must take a small part of one.
func BenchmarkASecondOfTenThousandAgents(b *testing.B) {
	const agents = 10_000
	m := New(Config{LogDir: b.TempDir(), DeathTimer: 5 * time.Second, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	streams := make([]*stream, agents)
	for i := range streams {
		streams[i] = newStream(nil, func(error) {})
		hello := &agentstream.Hello{Run: "a", Node: api.NodeRecord{Name: fmt.Sprintf("n%d", i)}}
		if err := m.connect(hello, streams[i]); err != nil {
			b.Fatal(err)
		}
	}
	names := make([]string, agents)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
	}
	for b.Loop() {
		for i, s := range streams {
			m.ping(names[i], s)
			for _, down := range s.take() {
				m.answered(names[i], s, down.Ping.Seq)
			}
		}
		_ = m.NextDeath()
	}
}
