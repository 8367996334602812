package nodeimages_test

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/nodeimages"
	"github.com/nearmetal/nearmetal/internal/silencetest"
)

func TestWhoSendsNoBodyHoldsNoConnectionOfANode(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		took := silencetest.Held(t, method+" /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", func(t *testing.T, l net.Listener) {
			_ = nodeimages.NewPeerServer(nil, l, nodeimages.PeerConfig{}).Serve(t.Context())
		})
		if took > 3*time.Minute {
			t.Errorf("%s: the connection was held for %s", method, took)
		}
	}
}
