package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// TestAServerKilledAmidARenewalLocksNobodyOut kills the server after it has committed a node's next key and before it answers. The node goes on
// by the key it has, and renews again.
func TestAServerKilledAmidARenewalLocksNobodyOut(t *testing.T) {
	program(t, failpoints)
	nothingLeft(t)
	const mark = "state.after-renew-node"
	s := newSite(t, failpoints, "--nodes", "1")
	arms := armory{t, t.TempDir()}
	s.start(arms.environment())
	s.waitForNodes(1)
	s.revive(true)
	node, err := trust.ReadIdentity(filepath.Join(s.dir, "nodes", "n1", trust.IdentityName))
	if err != nil {
		t.Fatal(err)
	}
	arms.arm(mark)
	unanswered := s.renew(node)
	if unanswered == nil {
		t.Error("a server that was killed answered")
	}
	pid, died := arms.disarm(mark)
	if !died {
		t.Fatalf("nobody died at %s; the answer to the renewal: %v", mark, unanswered)
	}
	s.eventually(time.Minute, fmt.Sprintf("process %d to be dead", pid), func() bool { return !alive(pid) })
	s.waitForNodes(1)
	if err := s.renew(node); err != nil {
		t.Errorf("the node can't renew its certificate again: %v", err)
	}
	s.revive(false)
}

// renew asks for a certificate for another key, in the name of a node.
func (s *site) renew(node trust.Identity) error {
	next, err := node.Renewed()
	if err != nil {
		return err
	}
	request, err := next.Request()
	if err != nil {
		return err
	}
	pin, err := trust.ParsePin(node.Pin)
	if err != nil {
		return err
	}
	shown, err := node.TLS()
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	body, err := json.Marshal(api.NodeRenewal{Request: request})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.addr+"/agent/v1/renewal", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: trust.NodeTLS(pin, host, func() (*tls.Certificate, error) { return shown, nil })}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", answer.Status)
	}
	return nil
}
