package member

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// linkFirst and linkLast are the pauses between attempts to reach the node agent; they grow from one to the other.
	linkFirst = 2 * time.Millisecond
	linkLast  = 250 * time.Millisecond
	// linkDeadline bounds one attempt.
	linkDeadline = 10 * time.Second
	// maxToMember bounds a message of the node agent, which lists all jobs.
	maxToMember = 64 << 20
)

// link keeps a connection to the node agent until ctx ends.
func (a *agent) link(ctx context.Context) {
	delay, said := linkFirst, ""
	for ctx.Err() == nil {
		began := time.Now()
		conn, err := a.dial(ctx)
		if err == nil {
			said, err = "", a.talk(ctx, conn)
			a.log.Info("the connection to the node agent ended", "cause", err)
		} else if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			a.log.Warn("the node agent can't be reached; trying again", "error", err)
		}
		if time.Since(began) > linkLast {
			delay = linkFirst // a connection that is refused when it is made, as others' are, ends sooner
		}
		pause(ctx, delay)
		delay = min(2*delay, linkLast)
	}
}

func (a *agent) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, linkDeadline)
	defer cancel()
	return a.dialer.Dial(ctx)
}

// linkState is what one connection is about.
type linkState struct {
	signal func()

	mu     sync.Mutex
	cursor map[string]*sendCursor
}

// sendCursor is how far a job's output was sent and acknowledged.
type sendCursor struct{ next, acked, request int64 }

// talk exchanges messages until the connection or ctx ends.
func (a *agent) talk(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := &linkState{signal: a.jobs.signal, cursor: map[string]*sendCursor{}}
	var running sync.WaitGroup
	running.Go(func() {
		cancel(a.receive(conn, l))
	})
	running.Go(func() {
		<-ctx.Done()
		_ = conn.Close()
	})
	cancel(a.send(ctx, conn, l))
	running.Wait()
	return context.Cause(ctx)
}

// receive obeys the node agent's messages.
func (a *agent) receive(conn net.Conn, l *linkState) error {
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 16<<10), maxToMember)
	for lines.Scan() {
		var message ToMember
		if err := json.Unmarshal(lines.Bytes(), &message); err != nil {
			return fmt.Errorf("the node agent sent an invalid message: %w", err)
		}
		switch {
		case message.Jobs != nil:
			a.jobs.set(*message.Jobs)
		case message.LogFrom != nil:
			l.follow(*message.LogFrom)
			a.ack(message.LogFrom.JobID, message.LogFrom.Offset)
		case message.LogAck != nil:
			l.acked(message.LogAck.JobID, message.LogAck.Offset)
			a.ack(message.LogAck.JobID, message.LogAck.Offset)
			if output := a.jobs.output(message.LogAck.JobID); output != nil && message.LogAck.Discard {
				output.discard(message.LogAck.Offset)
			}
		case message.Checks != nil:
			a.health.setChecks(*message.Checks)
		case message.Stop != nil:
			a.log.Info("the node agent requested the member's end")
			a.stop()
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("the node agent closed the connection")
}

func (a *agent) ack(jobID string, offset int64) {
	if output := a.jobs.output(jobID); output != nil {
		output.ack(offset)
	}
}

func (l *linkState) follow(from LogFrom) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cursor[from.JobID] = &sendCursor{next: from.Offset, acked: from.Offset, request: from.Request}
	l.signal()
}

func (l *linkState) acked(jobID string, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.cursor[jobID]; c != nil {
		c.acked = max(c.acked, offset)
		l.signal()
	}
}

// send tells the node agent everything once, then what changes.
func (a *agent) send(ctx context.Context, conn net.Conn, l *linkState) error {
	encoder := json.NewEncoder(conn)
	if err := encoder.Encode(FromMember{Hello: &Hello{Instance: a.instance, Version: ProtocolVersion}}); err != nil {
		return err
	}
	statusDue := true
	states := a.jobs.states(true)
	for {
		if statusDue {
			if err := a.sendStatus(encoder); err != nil {
				return err
			}
		}
		for part := range slices.Chunk(states, maxStates) {
			if err := encoder.Encode(FromMember{Jobs: &part}); err != nil {
				return err
			}
		}
		more, err := a.sendLogs(encoder, l)
		if err != nil {
			return err
		}
		if more {
			l.signal()
		}
		statusDue = false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.changed:
			statusDue = true
		case <-a.jobs.wake:
		}
		states = a.jobs.states(false)
	}
}

func (a *agent) sendStatus(encoder *json.Encoder) error {
	ready, problem := a.status()
	if ready == nil && problem == nil {
		return nil
	}
	if err := encoder.Encode(FromMember{Ready: ready, Problem: problem}); err != nil {
		return err
	}
	if health := a.health.status(); health != nil {
		return encoder.Encode(FromMember{Health: health})
	}
	return nil
}

// sendLogs sends one piece of every job whose output is followed, and tells whether there is more.
func (a *agent) sendLogs(encoder *json.Encoder, l *linkState) (more bool, err error) {
	l.mu.Lock()
	ids := sortedKeys(l.cursor)
	l.mu.Unlock()
	for _, id := range ids {
		output := a.jobs.output(id)
		if output == nil {
			continue
		}
		l.mu.Lock()
		cursor := l.cursor[id]
		offset, room := cursor.next, cursor.acked+logWindow-cursor.next
		l.mu.Unlock()
		data, offset := output.read(offset, min(room, maxLogPiece))
		if len(data) == 0 {
			continue
		}
		if err := encoder.Encode(FromMember{Log: &Log{JobID: id, Offset: offset, Data: data, Request: cursor.request}}); err != nil {
			return false, err
		}
		more = true
		l.mu.Lock()
		if l.cursor[id] == cursor { // not asked for anew meanwhile
			cursor.next = offset + int64(len(data))
			cursor.acked = max(cursor.acked, offset)
		}
		l.mu.Unlock()
	}
	return more, nil
}
