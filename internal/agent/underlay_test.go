package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

func TestAnUnderlayThatChangesIsReportedOnANewStream(t *testing.T) {
	a := newTestAgent(t)
	greetings := make(chan api.NodeRecord, 3)
	server := mute(t, func(c *agentstream.ServerConn) {
		up, err := c.Receive()
		if err != nil || up.Hello == nil {
			t.Errorf("got %+v, %v; want a greeting", up, err)
			return
		}
		greetings <- up.Hello.Node
	})
	var now atomic.Pointer[fabric.Underlay]
	now.Store(&fabric.Underlay{MTU: 9000, BitsPerSecond: 25e9})
	looks := make(chan struct{}, 100)
	a.cfg.Server, a.cfg.Client = server.URL, server.Client()
	a.cfg.Inspect = func(context.Context) []api.EnvironmentOnNode { return nil }
	a.cfg.Underlay = func(context.Context) (fabric.Underlay, error) {
		select {
		case looks <- struct{}{}:
		default:
		}
		u := *now.Load()
		if u.MTU < 0 {
			return fabric.Underlay{}, errors.New("it can't be read now")
		}
		return u, nil
	}
	a.opening.underlayEvery = time.Millisecond
	ended := make(chan error, 1)
	session := func() { _, err := a.session(bounded(t)); ended <- err }
	go session()
	if got := <-greetings; got.UnderlayMTU != 9000 || got.Capacity.UplinkBitsPerSecond != 25e9 {
		t.Errorf("greeted with MTU %d and %d bits per second", got.UnderlayMTU, got.Capacity.UplinkBitsPerSecond)
	}
	for range 5 { // that it is the same is no news
		<-looks
	}
	select {
	case err := <-ended:
		t.Fatalf("the stream ended without a change: %v", err)
	default:
	}
	now.Store(&fabric.Underlay{MTU: 1500, BitsPerSecond: 25e9})
	if err := <-ended; !errors.Is(err, errUnderlayChanged) {
		t.Fatalf("the stream ended by %v, want the change", err)
	}
	now.Store(&fabric.Underlay{MTU: -1})
	go session()
	if got := <-greetings; got.UnderlayMTU != 9000 {
		t.Errorf("while it can't be read, greeted with MTU %d, want what was reported before", got.UnderlayMTU)
	}
	now.Store(&fabric.Underlay{MTU: 1500})
	if err := <-ended; !errors.Is(err, errUnderlayChanged) {
		t.Fatalf("the stream ended by %v, want the change", err)
	}
	go session()
	if got := <-greetings; got.UnderlayMTU != 1500 || got.Capacity.UplinkBitsPerSecond != 0 {
		t.Errorf("greeted with MTU %d and %d bits per second", got.UnderlayMTU, got.Capacity.UplinkBitsPerSecond)
	}
	now.Store(&fabric.Underlay{})
	<-ended
}
