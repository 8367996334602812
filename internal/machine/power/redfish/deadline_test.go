package redfish

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/silencetest"
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
			go func() {
				// What comes before the request is no answer to it.
				if _, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
					_, _ = io.WriteString(theirs, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
				}
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

func TestASlowServiceIsLeftWithoutASession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow = 8 * time.Second // for each answer
		open := 0
		service := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-time.After(slow)
			switch {
			case r.Method == http.MethodPost:
				open++
				w.Header().Set("X-Auth-Token", "t")
				w.Header().Set("Location", "/redfish/v1/SessionService/Sessions/1")
				w.WriteHeader(http.StatusCreated)
			case r.Method == http.MethodDelete && r.Context().Err() == nil:
				open--
			default:
				_, _ = io.WriteString(w, `{"Links": {"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}}, "Systems": {"@odata.id": "/redfish/v1/Systems"}}`)
			}
		})}
		conns := make(silencetest.Listener)
		go func() { _ = service.Serve(conns) }()
		s, err := New(power.Target{
			Name: "m1", Control: api.PowerControl{Kind: api.PowerRedfish, Address: "http://10.0.0.7", User: "u"}, Credentials: power.Credentials{User: "u", Password: "p"},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			conns <- theirs
			return ours, nil
		}
		// A newer order comes while it looks at the machine.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, _ = s.Observe(ctx)
		synctest.Wait()
		if open != 0 {
			t.Errorf("%d sessions are left open", open)
		}
		close(conns)
		_ = service.Close()
	})
}
