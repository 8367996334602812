package ufm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// Credentials authenticate to UFM: a token, or a name and a password.
type Credentials struct {
	Token          string
	User, Password string
}

// ParseCredentials reads a file of credentials: one line, either USER:PASSWORD or a token.
func ParseCredentials(text string) (Credentials, error) {
	line := strings.TrimSpace(text)
	if line == "" || strings.ContainsAny(line, "\r\n") {
		return Credentials{}, errors.New("credentials for UFM are one line: USER:PASSWORD, or a token")
	}
	if user, password, is := strings.Cut(line, ":"); is {
		if user == "" || password == "" {
			return Credentials{}, errors.New("credentials for UFM lack the user or the password: write USER:PASSWORD")
		}
		return Credentials{User: user, Password: password}, nil
	}
	return Credentials{Token: line}, nil
}

const (
	// mostAnswer bounds an answer in bytes: 1,000 partitions of 1,000 members each, at 70 bytes.
	mostAnswer = 128 << 20
	// mostReason bounds what an error repeats of UFM's words, in bytes.
	mostReason = 300
)

// client speaks with UFM.
type client struct {
	http        *http.Client
	base        string
	credentials Credentials
}

// lostError reports that UFM was asked and its answer was lost: it may have carried the request out, or may yet.
type lostError struct{ cause error }

func (e *lostError) Error() string { return e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

func newClient(cfg Config) (*client, error) {
	at, err := url.Parse(cfg.URL)
	if err != nil || at.Scheme != "https" || at.Host == "" || at.User != nil || strings.Trim(at.Path, "/") != "" || at.RawQuery != "" {
		return nil, fmt.Errorf("UFM's URL %q is not like https://ufm.example.com, without credentials or a path", cfg.URL)
	}
	c := cfg.Credentials
	if (c.Token == "") == (c.User == "") {
		return nil, errors.New("UFM needs either a token or a user with a password")
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName}
	if cfg.CA != "" {
		text, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("UFM's authority: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("UFM's authority: %s has no certificate in PEM", cfg.CA)
		}
	}
	// Tokens have an interface of their own, with the same resources.
	version := "/ufmRest"
	if c.Token != "" {
		version = "/ufmRestV3"
	}
	return &client{
		base: "https://" + at.Host + version, credentials: c,
		http: &http.Client{
			Timeout: cfg.Timeout, Transport: &http.Transport{TLSClientConfig: secure, MaxIdleConnsPerHost: 1},
			// A redirect would carry the credentials elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// partitions returns all of UFM's partitions with their members, by key.
func (c *client) partitions(ctx context.Context) (map[int]partition, error) {
	text, err := c.call(ctx, http.MethodGet, partitionsPath+"?guids_data=true", nil)
	if err != nil {
		return nil, err
	}
	return parsePartitions(text)
}

// change carries out one change. A partition that is gone already needs no removal.
func (c *client) change(ctx context.Context, ch change) error {
	body, err := ch.encode()
	if err != nil {
		return err
	}
	_, err = c.call(ctx, ch.method, ch.path, body)
	if refused := (*refusedError)(nil); ch.method == http.MethodDelete && errors.As(err, &refused) && refused.status == http.StatusNotFound {
		return nil
	}
	return err
}

// refusedError is an answer other than success.
type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string { return e.text }

// call sends one request and returns the body of a success.
func (c *client) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if c.credentials.Token != "" {
		req.Header.Set("Authorization", "Basic "+c.credentials.Token)
	} else {
		req.SetBasicAuth(c.credentials.User, c.credentials.Password)
	}
	what := fmt.Sprintf("UFM: %s %.80s", method, path)
	answer, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, c.explain(ctx, err))
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, c.explain(ctx, err))
	case len(text) > mostAnswer:
		return nil, fmt.Errorf("%s: the answer has more than %d MiB", what, mostAnswer>>20)
	case answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden:
		return nil, &refusedError{answer.StatusCode, what + ": UFM refused the credentials: " + reason(answer.Status, text)}
	case answer.StatusCode >= 500:
		// Work may have begun before it failed.
		return nil, &lostError{&refusedError{answer.StatusCode, what + ": UFM failed: " + reason(answer.Status, text)}}
	case answer.StatusCode < 200 || answer.StatusCode > 299:
		return nil, &refusedError{answer.StatusCode, what + ": UFM refused: " + reason(answer.Status, text)}
	}
	return text, nil
}

// explain says what a failed request means. One that reached nobody has changed nothing; of others the answer was lost.
func (c *client) explain(ctx context.Context, err error) error {
	if trust := (*tls.CertificateVerificationError)(nil); errors.As(err, &trust) {
		return fmt.Errorf("UFM's certificate is not trusted: %w; check ca and server_name in the fabric's file", err)
	}
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return &lostError{err}
}

// reason is the status and the beginning of the body, which is text for people, JSON or HTML.
func reason(status string, text []byte) string {
	line := strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "?")), " ")
	if len(line) > mostReason {
		line = strings.ToValidUTF8(line[:mostReason], "") + "..."
	}
	return status + ": " + cmp.Or(line, "without a reason")
}
