package agentstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// tunnelPair is both ends of a tunnel over a real HTTP/2 connection.
func tunnelPair(t *testing.T) (server, agent *TunnelConn) {
	t.Helper()
	arrived := make(chan *TunnelConn, 1)
	tunnels := TunnelHandler(func(r TunnelRequest, c *TunnelConn) error {
		if r.ID != "id" || r.Node != "n1" {
			t.Errorf("request: got %+v", r)
		}
		arrived <- c
		return nil
	})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tunnels.ServeHTTP(w, r.WithContext(ForNode(r.Context(), "n1")))
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	ctx, cancel := context.WithCancel(context.Background())
	agent, err := BringTunnel(ctx, s.Client(), s.URL, TunnelRequest{ID: "id"})
	if err != nil {
		t.Fatal(err)
	}
	server = <-arrived
	t.Cleanup(func() {
		_ = server.Close()
		_ = agent.Close()
		cancel()
		s.Close()
	})
	return server, agent
}

// bothWays runs a test with either end as the first.
func bothWays(t *testing.T, test func(t *testing.T, a, b *TunnelConn)) {
	t.Helper()
	t.Run("from the server", func(t *testing.T) { s, a := tunnelPair(t); test(t, s, a) })
	t.Run("from the agent", func(t *testing.T) { s, a := tunnelPair(t); test(t, a, s) })
}

func TestATunnelCarriesBytesBothWaysAndEachCanBeClosedForItself(t *testing.T) {
	bothWays(t, func(t *testing.T, a, b *TunnelConn) {
		sent := bytes.Repeat([]byte("nearmetal "), 100_000) // many frames
		failed := make(chan error, 1)
		go func() {
			_, err := a.Write(sent)
			failed <- errors.Join(err, a.CloseWrite())
		}()
		got, err := io.ReadAll(b)
		if err := errors.Join(err, <-failed); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("got %d bytes, %v; want %d", len(got), err, len(sent))
		}
		// The other way is still open.
		if _, err := b.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		if err := b.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(a); err != nil || string(got) != "answer" {
			t.Fatalf("got %q, %v; want the answer", got, err)
		}
		if _, err := a.Write([]byte("x")); err == nil {
			t.Error("a way that was closed takes more")
		}
	})
}

func TestATunnelThatIsClosedBreaksOffForTheOtherEnd(t *testing.T) {
	bothWays(t, func(t *testing.T, a, b *TunnelConn) {
		if _, err := a.Write([]byte("half a")); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := io.ReadAll(b)
			waiting <- err
		}()
		own := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			own <- err
		}()
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-waiting; err == nil {
			t.Error("the other end takes what broke off for what has ended")
		}
		if err := <-own; err == nil {
			t.Error("a Read of a closed tunnel goes on")
		}
		if err := a.Close(); err != nil {
			t.Errorf("closing again: %v", err)
		}
	})
}

func TestWhatWasWrittenLastArrivesWhenBothWaysWereClosed(t *testing.T) {
	bothWays(t, func(t *testing.T, a, b *TunnelConn) {
		if err := b.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(a); err != nil {
			t.Fatal(err)
		}
		last := strings.Repeat("z", 3*frameLimit)
		got := make(chan string, 1)
		go func() {
			text, err := io.ReadAll(b)
			if err != nil {
				t.Error(err)
			}
			got <- string(text)
		}()
		if _, err := a.Write([]byte(last)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.CloseWrite(), a.Close()); err != nil {
			t.Fatal(err)
		}
		if text := <-got; text != last {
			t.Errorf("got %d bytes, want %d", len(text), len(last))
		}
	})
}

func TestAWriterIsHeldUpByAReaderThatDoesNotReadAndFreedByClose(t *testing.T) {
	bothWays(t, func(t *testing.T, a, _ *TunnelConn) {
		begun, progress, ended := make(chan struct{}), make(chan int64, 1), make(chan error, 1)
		go func() {
			var sent int64
			for piece := make([]byte, 64<<10); sent < 1<<30; sent += int64(len(piece)) {
				if _, err := a.Write(piece); err != nil {
					progress <- sent
					ended <- err
					return
				}
				if sent == 0 {
					close(begun)
				}
			}
			progress <- sent
			ended <- nil
		}()
		<-begun
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if sent, err := <-progress, <-ended; err == nil || sent > 64<<20 {
			t.Errorf("wrote %d bytes, %v; want that it stopped early", sent, err)
		}
	})
}

func TestWhatBreaksOffIsNotTakenForWhatHasEnded(t *testing.T) {
	for text, want := range map[string]error{
		"\x00\x00\x00\x03abc\x00\x00\x00\x00": nil,
		"\x00\x00\x00\x03abc":                 io.ErrUnexpectedEOF,
		"\x00\x00\x00\x09abc":                 io.ErrUnexpectedEOF,
		"\x00\x00\x00\x03abc\x00\x00":         io.ErrUnexpectedEOF,
	} {
		c := newTunnelConn(strings.NewReader(text), io.Discard, nil, nil, nil)
		if got, err := io.ReadAll(c); !errors.Is(err, want) || string(got) != "abc" {
			t.Errorf("%q: got %q, %v; want abc, %v", text, got, err, want)
		}
	}
	c := newTunnelConn(strings.NewReader("\xff\xff\xff\xffabc"), io.Discard, nil, nil, nil)
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a frame of 4 GiB was taken")
	}
}

func TestATunnelThatCannotBeConnectedTellsWhyInOneLine(t *testing.T) {
	told := make(chan TunnelRequest, 1)
	s := httptest.NewUnstartedServer(TunnelHandler(func(r TunnelRequest, c *TunnelConn) error {
		if c != nil {
			t.Error("a failure comes with a tunnel")
		}
		told <- r
		return nil
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	failure := "it is\npaused" + strings.Repeat("!", 2*maxFailure)
	if err := RefuseTunnel(t.Context(), s.Client(), s.URL, TunnelRequest{ID: "id", Failure: failure}); err != nil {
		t.Fatal(err)
	}
	if r := <-told; !strings.HasPrefix(r.Failure, "it is paused!!!") || len(r.Failure) > maxFailure {
		t.Errorf("told %q", r.Failure)
	}
}

func TestATunnelThatNobodyAskedForIsRefused(t *testing.T) {
	s := httptest.NewUnstartedServer(TunnelHandler(func(TunnelRequest, *TunnelConn) error { return errors.New("nobody asked for it") }))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	_, err := BringTunnel(t.Context(), s.Client(), s.URL, TunnelRequest{ID: "id"})
	if err == nil || !strings.Contains(err.Error(), "nobody asked for it") {
		t.Errorf("got %v, want the reason", err)
	}
}
