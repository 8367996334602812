package apiserver

import (
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/silencetest"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// oneToken knows the token "good".
type oneToken struct{}

func (oneToken) Verify(bearer string) (tenancy.Principal, bool) {
	return tenancy.Principal{Role: api.RoleAdmin}, bearer == "good"
}

func TestWhoShowsNoTokenAndSendsNoBodyHoldsNoConnection(t *testing.T) {
	for name, c := range map[string]struct {
		said string
		held bool
	}{
		"no token":     {"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", false},
		"a wrong one":  {"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nTransfer-Encoding: chunked\r\n\r\n", false},
		"an open path": {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", false},
		"a good token": {"POST /v1/clusters HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nContent-Length: 1000\r\n\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			took := silencetest.Held(t, c.said, func(_ *testing.T, l net.Listener) {
				s := &Server{cfg: Config{Tokens: oneToken{}, Log: slog.New(slog.DiscardHandler)}}
				server := s.httpServer(s.authenticate(http.NotFoundHandler()))
				_ = server.Serve(l)
				_ = server.Close()
			})
			if held := took > 3*time.Minute; held != c.held {
				t.Errorf("the connection was held for %s", took)
			}
		})
	}
}
