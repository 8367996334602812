package monitor

import (
	"context"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// counted is what HomeUsage returned.
type counted struct {
	usage api.HomeUsage
	err   error
}

// askedHome asks for a home and returns the question that the agent got.
func askedHome(t *testing.T, m *Monitor, agent *agentstream.ClientConn) (agentstream.CountHome, <-chan counted) {
	t.Helper()
	result := make(chan counted, 1)
	go func() {
		usage, err := m.HomeUsage(t.Context(), "n1", "uc1.c1-0.1")
		result <- counted{usage, err}
	}()
	for {
		down, err := agent.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if down.CountHome != nil {
			return *down.CountHome, result
		}
	}
}

func TestTheAgentThatWasAskedCountsAHome(t *testing.T) {
	m := newTest(t)
	agent := greeted(t, m, serve(t, m, nil), "a1")
	want := api.HomeUsage{Files: 7, Bytes: 42}
	question, result := askedHome(t, m, agent)
	if question.MemberID != "uc1.c1-0.1" {
		t.Errorf("asked %+v", question)
	}
	for _, answer := range []agentstream.HomeCounted{
		{Answer: agentstream.Answer{ID: question.ID + 1}, Usage: api.HomeUsage{Files: 1}},
		{Answer: agentstream.Answer{ID: question.ID}, Usage: want},
		{Answer: agentstream.Answer{ID: question.ID}},
	} {
		if err := agent.Send(agentstream.Up{HomeCounted: &answer}); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-result; got.err != nil || got.usage != want {
		t.Errorf("got %+v, want the one answer to this question, %+v", got, want)
	}
	question, result = askedHome(t, m, agent)
	if err := agent.Send(agentstream.Up{HomeCounted: &agentstream.HomeCounted{Answer: agentstream.Answer{ID: question.ID, Failure: "no such member"}}}); err != nil {
		t.Fatal(err)
	}
	if got := <-result; got.err == nil || !strings.Contains(got.err.Error(), "no such member") {
		t.Errorf("got %+v, want the agent's failure", got)
	}
}

func TestAHomeOfANodeThatDoesNotAnswerIsNotKnown(t *testing.T) {
	m := newTest(t)
	if _, err := m.HomeUsage(t.Context(), "n1", "x"); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("no agent: %v", err)
	}
	greeted(t, m, serve(t, m, nil), "a1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 * homeLimits().most { // what nobody waits for any more takes no place
		if _, err := m.HomeUsage(ctx, "n1", "x"); err == nil || !strings.Contains(err.Error(), "did not answer in time") {
			t.Fatalf("no answer: %v", err)
		}
	}
}

func TestAnAgentCountsAFewHomesAtOnce(t *testing.T) {
	s := newStream(nil, func(error) {})
	count := func(id int64) agentstream.Down { return agentstream.Down{CountHome: &agentstream.CountHome{ID: id}} }
	for range s.homes.most {
		if _, _, err := s.homes.send(s, count); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.homes.send(s, count); err == nil {
		t.Errorf("more than %d counts are under way at one agent", s.homes.most)
	}
}

func TestAQuestionThatNobodyWaitsForIsNotSent(t *testing.T) {
	s := newStream(nil, func(error) {})
	id, _, err := s.homes.send(s, func(id int64) agentstream.Down { return agentstream.Down{CountHome: &agentstream.CountHome{ID: id}} })
	if err != nil {
		t.Fatal(err)
	}
	s.homes.forget(s, id)
	if down := s.take(); len(down) != 0 {
		t.Errorf("an agent that reads nothing for a while gets %d questions that nobody waits for", len(down))
	}
}
