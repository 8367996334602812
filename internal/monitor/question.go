package monitor

import (
	"context"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// limits bound the questions of one kind to one agent.
type limits struct {
	// patience bounds the wait for an answer; the agent gives itself a little less.
	patience time.Duration
	// most bounds how many questions wait for an answer at once.
	most int
	// busy is the reason for a refusal beyond most.
	busy string
}

// answer is an agent's answer to a question of one kind.
type answer interface{ Common() agentstream.Answer }

// questions are the questions of one kind to one agent that wait for an answer, by ID. The lock of the stream guards waiting.
type questions[A answer] struct {
	limits
	waiting map[int64]chan A
}

func newQuestions[A answer](l limits) questions[A] {
	return questions[A]{l, map[int64]chan A{}}
}

// ask sends a question to a node's agent and returns the one answer to it. An answer that reports a failure is an error.
func ask[A answer](
	ctx context.Context, m *Monitor, nodeName string, kind func(*stream) *questions[A], question func(id int64) agentstream.Down,
) (got A, err error) {
	s, err := m.streamTo(nodeName)
	if err != nil {
		return got, err
	}
	q := kind(s)
	id, answered, err := q.send(s, question)
	if err != nil {
		return got, fmt.Errorf("node %q: %w", nodeName, err)
	}
	defer q.forget(s, id)
	ctx, cancel := context.WithTimeout(ctx, q.patience)
	defer cancel()
	select {
	case got = <-answered:
		if failure := got.Common().Failure; failure != "" {
			return got, fmt.Errorf("node %q: %s", nodeName, manifest.Text(failure))
		}
		return got, nil
	case <-ctx.Done():
		return got, fmt.Errorf("the agent of node %q did not answer in time: %w", nodeName, ctx.Err())
	}
}

// send queues a question on the stream and returns where its answer arrives.
func (q *questions[A]) send(s *stream, question func(id int64) agentstream.Down) (int64, <-chan A, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(q.waiting) >= q.most {
		return 0, nil, fmt.Errorf("%s; try again in a few seconds", q.busy)
	}
	s.lastQuestion++
	id, answered := s.lastQuestion, make(chan A, 1)
	q.waiting[id], s.unasked[id] = answered, question(id)
	s.wake()
	return id, answered, nil
}

// forget frees the place of a question whose caller waits no longer. A question that was not sent yet is dropped.
func (q *questions[A]) forget(s *stream, id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(q.waiting, id)
	delete(s.unasked, id)
}

// take passes an agent's answer to the caller that waits for it. An answer to no question is dropped.
func (q *questions[A]) take(s *stream, a A) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := a.Common().ID
	if waiting := q.waiting[id]; waiting != nil {
		delete(q.waiting, id)
		waiting <- a // it has room for one
	}
}
