package redfish

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// client is one login at a service.
type client struct {
	http        *http.Client
	base        *url.URL
	credentials power.Credentials
	basic       bool
	token       string // of the session, "" for none
	session     string // its path
	root        serviceRoot
}

// serviceRoot is what is read of the service root.
type serviceRoot struct {
	Systems        link `json:"Systems"`
	AccountService link `json:"AccountService"`
	Managers       link `json:"Managers"`
	Links          struct {
		Sessions link `json:"Sessions"`
	} `json:"Links"`
}

type link struct {
	Path string `json:"@odata.id"`
}

// maxAnswerBytes bounds answers; a system with all its extensions has some ten thousand.
const maxAnswerBytes = 4 << 20

// session logs in, runs do and logs out, whether or not ctx has ended. While another password is being set, do runs once more with the other one if the
// first is refused, which may not be known before its first request.
func (s *Switch) session(ctx context.Context, do func(*client) error) error {
	password := s.passwords.Right()
	err := s.sessionAs(ctx, password, do)
	if other := s.passwords.Other(password); other != "" && errors.Is(err, power.ErrCredentials) {
		password = other
		err = s.sessionAs(ctx, password, do)
	}
	if err == nil {
		s.passwords.Took(password)
	}
	return err
}

func (s *Switch) sessionAs(ctx context.Context, password string, do func(*client) error) error {
	c := &client{
		base: s.base, credentials: power.Credentials{User: s.credentials.User, Password: password},
		http: &http.Client{
			Transport: s.transport,
			// A redirect could carry the password elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	defer s.transport.CloseIdleConnections()
	s.endLeft(ctx)
	err := c.login(ctx)
	if err == nil {
		err = do(c)
	}
	if !c.logout(context.WithoutCancel(ctx)) {
		s.leave(c)
	}
	if err != nil {
		return s.explain(err)
	}
	return nil
}

// endLeft ends the sessions that were left open, before another is opened: there may be no room for that else.
func (s *Switch) endLeft(ctx context.Context) {
	s.mu.Lock()
	left := s.left
	s.left = nil
	s.mu.Unlock()
	for i, c := range left {
		if !c.logout(ctx) {
			s.leave(left[i:]...)
			return // the others would not end either
		}
	}
}

func (s *Switch) leave(clients ...*client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, clients...)
	s.left = s.left[max(0, len(s.left)-mostLeft):]
}

// explain adds the BMC's address and makes what happened one of package power's errors.
func (s *Switch) explain(err error) error {
	at := fmt.Sprintf("Redfish at %s", s.base.Host)
	var status *statusError
	var failed *url.Error
	var changed *certificateError
	switch {
	case errors.As(err, &status) && status.busy():
		return fmt.Errorf("%s: %w: %w", at, power.ErrBusy, err)
	case errors.As(err, &status) && (status.code == http.StatusUnauthorized || status.code == http.StatusForbidden):
		// ErrCredentials has said what its 401 says; only the BMC's own words, as of a locked account, tell more.
		return fmt.Errorf("%s: %w (user %q): it answered %q", at, power.ErrCredentials, s.credentials.User, cmp.Or(status.message, http.StatusText(status.code)))
	case errors.As(err, &changed):
		return fmt.Errorf("%s: %w", at, changed)
	case errors.As(err, &failed) && failed.Timeout():
		return fmt.Errorf("%s: %w in time", at, power.ErrUnreachable)
	case errors.As(err, &failed):
		return fmt.Errorf("%s: %w: %w", at, power.ErrUnreachable, failed.Err)
	}
	return fmt.Errorf("%s: %w", at, err)
}

// login reads the service root, which needs no login, and opens a session (DSP0266, "Redfish session login authentication"); a service
// without sessions is told the password with each request.
func (c *client) login(ctx context.Context) error {
	if err := c.get(ctx, c.base.Path, &c.root); err != nil {
		return err
	}
	if c.credentials.User == "" {
		return nil
	}
	if c.root.Links.Sessions.Path == "" {
		c.basic = true
		return nil
	}
	// Given up in between, it could leave a session that nobody knows the name of, of which a BMC has few.
	whole, cancel := undisturbed(ctx)
	defer cancel()
	answer, err := c.do(whole, http.MethodPost, c.root.Links.Sessions.Path,
		map[string]string{"UserName": c.credentials.User, "Password": c.credentials.Password}, "", nil)
	var status *statusError
	if errors.As(err, &status) && slices.Contains([]int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}, status.code) {
		c.basic = true
		return nil
	}
	if errors.As(err, &status) && status.code == http.StatusBadRequest {
		status.code = http.StatusUnauthorized // some say so to a wrong password
	}
	if err != nil {
		return err
	}
	c.token = answer.Get("X-Auth-Token")
	if c.token == "" {
		return errors.New("the service opened a session without an X-Auth-Token")
	}
	if location, err := url.Parse(answer.Get("Location")); err == nil {
		c.session = location.Path
	}
	return nil
}

// undisturbed is a context that ends at the other's deadline and for no other reason.
func undisturbed(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}

// logout ends the session, and reports whether there is none any more. It is as patient as any request: a BMC has few sessions, and keeps one that
// was left open for half an hour.
func (c *client) logout(ctx context.Context) bool {
	if c.token == "" || c.session == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answer, err := c.do(ctx, http.MethodDelete, c.session, nil, "", nil)
	if kind := answer.Get("Content-Type"); err == nil {
		return kind == "" || strings.Contains(kind, "json") // what answers in another language has not understood
	}
	var status *statusError
	return errors.As(err, &status) && (status.code == http.StatusUnauthorized || status.code == http.StatusNotFound)
}

func (c *client) get(ctx context.Context, path string, into any) error {
	_, err := c.do(ctx, http.MethodGet, path, nil, "", into)
	return err
}

func (c *client) post(ctx context.Context, path string, body any) error {
	_, err := c.do(ctx, http.MethodPost, path, body, "", nil)
	return err
}

// patch changes a resource. A service that wants to know which state it was in is told (DSP0266, "Protecting against lost updates").
func (c *client) patch(ctx context.Context, path string, body any) error {
	_, err := c.do(ctx, http.MethodPatch, path, body, "", nil)
	var status *statusError
	if !errors.As(err, &status) || status.code != http.StatusPreconditionFailed && status.code != http.StatusPreconditionRequired {
		return err
	}
	var resource struct {
		ETag string `json:"@odata.etag"`
	}
	header, failed := c.do(ctx, http.MethodGet, path, nil, "", &resource)
	if failed != nil {
		return failed
	}
	etag := header.Get("ETag")
	if etag == "" {
		etag = resource.ETag
	}
	_, err = c.do(ctx, http.MethodPatch, path, body, etag, nil)
	return err
}

// system reads a system.
func (c *client) system(ctx context.Context, path string) (*computerSystem, error) {
	var system computerSystem
	if err := c.get(ctx, path, &system); err != nil {
		return nil, err
	}
	system.Path = path // whatever it calls itself
	return &system, nil
}

// members are the paths of a collection's members, of all its pages.
func (c *client) members(ctx context.Context, path string) ([]string, error) {
	var paths []string
	for pages := 0; path != ""; pages++ {
		var page struct {
			Members []link `json:"Members"`
			Next    string `json:"Members@odata.nextLink"`
		}
		if err := c.get(ctx, path, &page); err != nil {
			return nil, err
		}
		for _, m := range page.Members {
			paths = append(paths, m.Path)
		}
		if path = page.Next; pages > 1000 {
			return nil, fmt.Errorf("the service's list at %s does not end", page.Next)
		}
	}
	return paths, nil
}

// do sends a request and reads the answer's JSON, unless into is nil.
func (c *client) do(ctx context.Context, method, path string, body any, etag string, into any) (http.Header, error) {
	target, err := c.base.Parse(path)
	if err != nil || target.Host != c.base.Host || target.Scheme != c.base.Scheme {
		return nil, fmt.Errorf("the service links to %q, which is on another server", path)
	}
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("OData-Version", "4.0")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if etag != "" {
		request.Header.Set("If-Match", etag)
	}
	if c.basic {
		request.SetBasicAuth(c.credentials.User, c.credentials.Password)
	} else if c.token != "" {
		request.Header.Set("X-Auth-Token", c.token)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, &url.Error{Op: method, URL: target.Path, Err: err}
	case len(text) > maxAnswerBytes:
		return nil, fmt.Errorf("the service's answer to %s %s is longer than %d bytes", method, target.Path, maxAnswerBytes)
	case answer.StatusCode < 200 || answer.StatusCode > 299:
		return nil, newStatusError(method, target.Path, answer.StatusCode, text)
	case into == nil:
		return answer.Header, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return nil, fmt.Errorf("the service's answer to %s %s is not Redfish: %w", method, target.Path, err)
	}
	return answer.Header, nil
}

// statusError is an answer that is no success.
type statusError struct {
	method, path string
	code         int
	// ids and message are the service's own words (DSP0266, "Error responses").
	ids     []string
	message string
}

func newStatusError(method, path string, code int, text []byte) *statusError {
	e := &statusError{method: method, path: path, code: code}
	var body struct {
		Error struct {
			Code     string `json:"code"`
			Message  string `json:"message"`
			Extended []struct {
				ID      string `json:"MessageId"`
				Message string `json:"Message"`
			} `json:"@Message.ExtendedInfo"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &body) != nil {
		return e
	}
	e.ids, e.message = []string{body.Error.Code}, body.Error.Message
	for _, x := range body.Error.Extended {
		e.ids = append(e.ids, x.ID)
		if x.Message != "" {
			e.message = x.Message
		}
	}
	return e
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s %s was answered with %d %s", e.method, e.path, e.code, http.StatusText(e.code))
	if e.message != "" {
		text += ": " + e.message
	}
	return text
}

// busy tells whether the service has no session left (message registry Base: SessionLimitExceeded and its like).
func (e *statusError) busy() bool {
	return slices.ContainsFunc(e.ids, func(id string) bool {
		return strings.HasSuffix(id, ".SessionLimitExceeded") || strings.HasSuffix(id, ".CreateLimitReachedForResource")
	})
}
