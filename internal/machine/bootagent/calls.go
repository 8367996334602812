package bootagent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// calls speaks the boot API.
type calls struct {
	base    string
	session string
	client  *http.Client
}

// maxAnswer bounds answers: the longest is a manifest.
const maxAnswer = 16 << 20

// refusedError is an answer that says no.
type refusedError struct {
	status int
	detail string
	do     string // boot.Problem.Do
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the server refused the request (%d): %s", e.status, e.detail)
}

// final tells that asking again with the same token is of no use.
func (e *refusedError) final() bool {
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusGone:
		return true
	}
	return false
}

func newCalls(args boot.Arguments) (*calls, error) {
	pin, err := trust.ParsePin(args.Pin)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(args.Server)
	if err != nil {
		return nil, err
	}
	return &calls{base: "https://" + args.Server, client: httpClient(trust.ClientTLS(pin, host))}, nil
}

// httpClient keeps connections open: a boot makes many small requests to few servers.
func httpClient(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: config != nil, DisableCompression: true, MaxIdleConnsPerHost: 16,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
	}}
}

// post sends a request and reads the answer, which may be empty.
func (c *calls) post(ctx context.Context, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	resp, err := c.send(ctx, http.MethodPost, path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("the server's answer to %s: %w", path, err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("the server's answer to %s: %w", path, err)
	}
	return nil
}

// send returns an answer that says yes.
func (c *calls) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.session != "" {
		req.Header.Set("Authorization", "Bearer "+c.session)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return resp, nil
	}
	defer resp.Body.Close()
	var problem boot.Problem
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(text, &problem) != nil || problem.Title+problem.Detail == "" {
		problem.Detail = string(bytes.TrimSpace(text[:min(len(text), 300)]))
	}
	if problem.Detail == "" {
		problem.Detail = problem.Title
	}
	return nil, &refusedError{status: resp.StatusCode, detail: problem.Detail, do: problem.Do}
}

// backoff waits before the next try: 1 s, doubled each time up to a minute.
func backoff(ctx context.Context, try int) error {
	select {
	case <-time.After(min(time.Second<<min(try, 6), time.Minute)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isFinal tells that an error stays whatever is tried.
func isFinal(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused) && refused.final() || errors.Is(err, trust.ErrWrongServer)
}
