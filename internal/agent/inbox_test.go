package agent

import (
	"context"
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

func TestPingsAreAnsweredWhileTheLoopIsBusy(t *testing.T) {
	a := newTestAgent(t) // nothing runs its loop
	answered := make(chan int64, 1)
	server := mute(t, func(c *agentstream.ServerConn) {
		for i := range 2 * cap(a.events) {
			ack := agentstream.LogAck{JobID: fmt.Sprintf("j%d", i), Offset: 1}
			if err := c.Send(agentstream.Down{LogAck: &ack}); err != nil {
				return
			}
			if err := c.Send(agentstream.Down{Desired: &agentstream.Desired{Term: 1, Revision: int64(i + 1)}}); err != nil {
				return
			}
		}
		_ = c.Send(agentstream.Down{Ping: &agentstream.Ping{Seq: 7}})
		for {
			up, err := c.Receive()
			if err != nil {
				return
			}
			if up.Heartbeat != nil {
				answered <- up.Heartbeat.Ping
				return
			}
		}
	})
	a.cfg.Server, a.cfg.Client = server.URL, server.Client()
	a.cfg.Inspect = func(context.Context) []api.EnvironmentOnNode { return nil }
	ctx, cancel := context.WithCancel(bounded(t))
	ended := make(chan error, 1)
	go func() {
		_, err := a.session(ctx)
		ended <- err
	}()
	select {
	case seq := <-answered:
		if seq != 7 {
			t.Errorf("ping %d was answered, want 7", seq)
		}
	case err := <-ended:
		t.Fatalf("the stream ended before the ping was answered: %v", err)
	}
	(<-a.events)()
	if a.desired.Revision < 1 || len(a.stored) == 0 {
		t.Errorf("at revision %d, with %d runs acknowledged; want what was heard meanwhile", a.desired.Revision, len(a.stored))
	}
	cancel()
	<-ended
}

func TestAnInboxKeepsTheNewestAndNoRequestIsLostInIt(t *testing.T) {
	in := newInbox()
	in.order(&agentstream.Desired{Revision: 1})
	in.ack(agentstream.LogAck{JobID: "b", Offset: 1, Again: true}, true)
	in.ack(agentstream.LogAck{JobID: "b", Offset: 2, Discard: true}, false)
	in.ack(agentstream.LogAck{JobID: "a", Offset: 3}, false)
	in.order(&agentstream.Desired{Revision: 2})
	desired, acks := in.take()
	if desired == nil || desired.Revision != 2 {
		t.Errorf("desired state %+v, want revision 2", desired)
	}
	want := []heardAck{
		{agentstream.LogAck{JobID: "a", Offset: 3}, false}, {agentstream.LogAck{JobID: "b", Offset: 2, Again: true, Discard: true}, true},
	}
	if len(acks) != 2 || acks[0] != want[0] || acks[1] != want[1] {
		t.Errorf("acknowledgements %+v, want %+v", acks, want)
	}
	if desired, acks := in.take(); desired != nil || len(acks) > 0 {
		t.Errorf("taken twice: %+v, %+v", desired, acks)
	}
}
