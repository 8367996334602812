package redfish

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/power"
)

func TestARequestThatIsNotAnsweredIsGivenUpBeforeTheWholeOrder(t *testing.T) {
	t.Parallel()
	for name, dial := range map[string]struct {
		conn func(ctx context.Context) (net.Conn, error)
		want time.Duration
	}{
		"it takes the request and says nothing": {func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			return ours, nil
		}, 10 * time.Second},
		"its answer stops on the way": {func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			go func() {
				_, _ = io.WriteString(theirs, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
			}()
			return ours, nil
		}, power.ObserveDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, err := New(power.Target{Name: "m1", Control: api.PowerControl{Kind: api.PowerRedfish, Address: "http://10.0.0.7"}})
				if err != nil {
					t.Fatal(err)
				}
				s.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial.conn(ctx) }
				ctx, cancel := context.WithTimeout(t.Context(), power.ObserveDeadline)
				defer cancel()
				began := time.Now()
				state, err := s.Observe(ctx)
				if took := time.Since(began); took != dial.want || state != api.PowerUnknown || err == nil {
					t.Errorf("after %s it is %q, %v; want unknown and an error after %s", took, state, err, dial.want)
				}
				if dial.want < power.ObserveDeadline && !errors.Is(err, power.ErrUnreachable) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}
